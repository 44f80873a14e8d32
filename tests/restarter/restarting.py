"""What the tests of targets and steps share: a job in the fake cluster, and a restart as the worker does it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpufrag.restarter.errors import Conflict
from gpufrag.restarter.kubernetes.client import KubernetesCluster
from gpufrag.restarter.kubernetes.cluster import PHASE, Owner
from gpufrag.restarter.kubernetes.owners import Resolved, resolve
from gpufrag.restarter.kubernetes.steps import AwaitStopped, Command, Evict, Patch, Step
from gpufrag.restarter.kubernetes.targets import TARGETS, Target
from restarter.fake_api import manifests
from restarter.fake_api.server import TOKEN, FakeApi, fake_api

LOOKS = 60
"""Each is a request at least, and so a tick of the fake's time: far more than any restart there takes."""


@dataclass
class Scene:
    """One job that runs, and the cluster through which it is restarted."""

    api: FakeApi
    cluster: KubernetesCluster
    resolved: Resolved

    @property
    def target(self) -> Target:
        return TARGETS[self.resolved.owner.group_kind]

    def again(self, manifest: dict[str, Any]) -> None:
        """Another such job in a new world."""
        self.api.reset()
        self.resolved = _running(self.api, self.cluster, manifest)

    def owner(self) -> Owner:
        return self.cluster.get_owner(self.resolved.owner.ref)

    def is_marked(self) -> bool:
        """Looked up without a request."""
        ref = self.resolved.owner.ref
        meta = self.api.world.get(ref.group_version, ref.kind, ref.name, ref.namespace)["metadata"]
        return PHASE in meta["annotations"]

    def pods(self) -> set[str]:
        """The uids of its pods that run and are not told to stop."""
        pods = self.target.pods(self.cluster, self.owner())
        return {pod.uid for pod in pods if pod.alive and not pod.deleting}

    def restart(self) -> None:
        self.go(self.target.plan(self.resolved.owner, self.resolved.pod))

    def go(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, AwaitStopped):
                self.until(lambda: self.target.stopped(self.cluster, self.owner()))
            else:
                self._run(step)
        self.until(lambda: self.target.running(self.cluster, self.owner()))

    def _run(self, step: Patch | Command | Evict) -> None:
        """A conflict alone is no rival: controllers write into the same object."""
        for _ in range(LOOKS):
            with contextlib.suppress(Conflict):
                step.run(self.cluster, self.owner(), {PHASE: step.name})
                return
        raise AssertionError("the owner does not keep still")

    def until(self, condition: Callable[[], bool]) -> None:
        assert any(condition() for _ in range(LOOKS)), "it did not come to pass"


@contextlib.contextmanager
def scene(manifest: dict[str, Any], **certificate: Any) -> Iterator[Scene]:
    with fake_api(**certificate) as api, contextlib.closing(connected(api)) as cluster:
        yield Scene(api, cluster, _running(api, cluster, manifest))


def connected(api: FakeApi, token: str = TOKEN) -> KubernetesCluster:
    return KubernetesCluster(api.config(token), trust_env=False)


def _running(api: FakeApi, cluster: KubernetesCluster, manifest: dict[str, Any]) -> Resolved:
    api.world.apply(manifest)
    pod = [one for one in api.world.pods() if one["metadata"]["name"].startswith(manifests.NAME)][-1]
    return resolve(cluster, manifests.NAMESPACE, pod["metadata"]["name"])
