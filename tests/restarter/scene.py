"""One running job on the fake API server, and a restart of it step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpufrag.restarter.backend import Conflict, Job, Stage
from gpufrag.restarter.kubernetes.backend import KubernetesBackend
from gpufrag.restarter.kubernetes.client import KubernetesClient
from gpufrag.restarter.kubernetes.objects import Owner, Pod
from gpufrag.restarter.kubernetes.targets import Target
from gpufrag.restarter.record import CLAIMED, SUSPENDED
from restarter.fake_api import manifests
from restarter.fake_api.server import TOKEN, FakeApi, User, fake_api
from restarter.worker_rig import alert

MAX_LOOKS = 60
"""Each takes a request, and so a tick of the fake's time: more than any restart needs."""


@dataclass
class Scene:
    """`job` is the job as it was before the restart."""

    api: FakeApi
    client: KubernetesClient
    backend: KubernetesBackend

    def start(self, manifest: dict[str, Any]) -> None:
        """Start this job in an empty cluster."""
        self.api.reset()
        self.api.world.apply(manifest)
        pod = [one for one in self.api.world.pods() if one["metadata"]["name"].startswith(manifests.NAME)][-1]
        self.job: Job = self.backend.find(alert(pod["metadata"]["name"]))
        self.owner: Owner = self.job.handle.owner
        self.pod: Pod = self.job.handle.pod
        self.target: Target = self.job.handle.target

    def allow(self, rules: Any, namespace: str = manifests.NAMESPACE) -> None:
        self.api.users[TOKEN] = User("restarter", tuple(rules), namespace)

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
        raise AssertionError(f"it does not run: {state}")

    def restart(self) -> None:
        self.stop()
        self.finish()

    def until(self, condition: Callable[[], bool]) -> None:
        assert any(condition() for _ in range(MAX_LOOKS)), "it never happened"


@contextlib.contextmanager
def scene(manifest: dict[str, Any]) -> Iterator[Scene]:
    with fake_api() as api, contextlib.closing(connected(api)) as client:
        it = Scene(api, client, KubernetesBackend(client, (manifests.NAMESPACE,), lambda: 0.0))
        it.start(manifest)
        yield it


def connected(api: FakeApi) -> KubernetesClient:
    return KubernetesClient(api.config(), trust_env=False)
