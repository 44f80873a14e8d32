"""One running job on the fake API server, and a restart of it step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.backend import Conflict, Job, Stage
from gpufrag.restarter.kubernetes.backend import KubernetesBackend
from gpufrag.restarter.kubernetes.client import KubernetesClient
from gpufrag.restarter.kubernetes.objects import Owner, Pod
from gpufrag.restarter.kubernetes.targets import Target
from gpufrag.restarter.record import CLAIMED, SUSPENDED
from restarter.fake_api import manifests
from restarter.fake_api.server import TOKEN, FakeApi, fake_api

MAX_LOOKS = 60
"""Each takes a request, and so a tick of the fake's time: more than any restart needs."""


@dataclass
class Scene:
    """`job` is the job as it was before the restart."""

    api: FakeApi
    client: KubernetesClient
    backend: KubernetesBackend
    job: Job

    @property
    def owner(self) -> Owner:
        owner: Owner = self.job.handle.owner
        return owner

    @property
    def pod(self) -> Pod:
        pod: Pod = self.job.handle.pod
        return pod

    @property
    def target(self) -> Target:
        target: Target = self.job.handle.target
        return target

    def again(self, manifest: dict[str, Any]) -> None:
        """Start with another such job in a new world."""
        self.api.reset()
        self.job = _start(self.api, self.backend, manifest)

    def read(self) -> Job:
        return self.backend.read(self.job)

    def pods(self) -> set[str]:
        """Return the uids of its pods that run and do not terminate."""
        return {pod.uid for pod in self.backend.pods(self.read()) if pod.alive and not pod.deleting}

    def stop(self) -> None:
        """Controllers write into the same object, so a conflict is normal."""
        for _ in range(MAX_LOOKS):
            job = self.read()
            self.backend.check(job)
            with contextlib.suppress(Conflict):
                self.backend.stop(job, replace(job.record, phase=CLAIMED, by="test-1"))
                return
        raise AssertionError("the object keeps changing")

    def finish(self) -> None:
        for _ in range(MAX_LOOKS):
            job = self.read()
            state = self.backend.state(job)
            if state.stage is Stage.RUNNING:
                return
            if state.stage is Stage.STOPPED and state.confirmed and job.record.phase == SUSPENDED:
                with contextlib.suppress(Conflict):
                    self.backend.start(job, job.record)
        raise AssertionError(f"it does not run: {self.stage()}")

    def restart(self) -> None:
        self.stop()
        self.finish()

    def stage(self) -> str:
        state = self.backend.state(self.read())
        return f"{state.stage.value} {state.waits_for}".strip()

    def until(self, condition: Callable[[], bool]) -> None:
        assert any(condition() for _ in range(MAX_LOOKS)), f"it never happened: {self.stage()}"


@contextlib.contextmanager
def scene(manifest: dict[str, Any], **certificate: Any) -> Iterator[Scene]:
    with fake_api(**certificate) as api, contextlib.closing(connected(api)) as client:
        backend = KubernetesBackend(client, (manifests.NAMESPACE,), lambda: 0.0)
        yield Scene(api, client, backend, _start(api, backend, manifest))


def connected(api: FakeApi, token: str = TOKEN) -> KubernetesClient:
    return KubernetesClient(api.config(token), trust_env=False)


def pod_alert(pod: str, namespace: str = manifests.NAMESPACE) -> Alert:
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "namespace": namespace, "pod": pod}
    return Alert("firing", labels, {"description": "A ratio of 9."}, "cafe", 1_799_999_600.0)


def _start(api: FakeApi, backend: KubernetesBackend, manifest: dict[str, Any]) -> Job:
    api.world.apply(manifest)
    pod = [one for one in api.world.pods() if one["metadata"]["name"].startswith(manifests.NAME)][-1]
    return backend.find(pod_alert(pod["metadata"]["name"]))
