"""The steps of a restart. Each can be run again, after a crash or an answer that got lost, and does no more than once.

Each but AwaitStopped begins with one merge patch of the owner, a compare-and-swap, which also carries the annotations
of the caller's memory: so the owner tells at every moment how far its restart has come. After any ClusterError, read
the owner again before the step is run again: its patch may have been taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import Conflict, NotFound
from .cluster import ANNOTATIONS, Body, Cluster, Owner, Pod

EVICTED = f"{ANNOTATIONS}/evicted-pod"
COMMANDED = f"{ANNOTATIONS}/commanded-at-version"


@dataclass(frozen=True)
class Patch:
    """Merge `body` into the owner."""

    name: str
    body: Body = field(default_factory=dict)

    def run(
        self, cluster: Cluster, owner: Owner, annotations: Mapping[str, str | None], dry_run: bool = False
    ) -> Owner:
        """The owner as it then is; None as an annotation's value removes it. Raises ClusterError."""
        body = merged(self.body, {"metadata": {"annotations": dict(annotations)}})
        return cluster.patch(owner.ref, body, owner.resource_version, dry_run)


@dataclass(frozen=True)
class AwaitStopped:
    """Nothing is sent: the caller waits until the target says that nothing of the owner runs any more."""

    name: str = "await-stopped"


@dataclass(frozen=True)
class Command:
    """Tell Volcano what to do with its Job; not a second time once the Job's version has moved on."""

    version: int
    """`status.version` when the restart was planned: Volcano counts it up with each restart."""
    name: str = "command"
    action: str = "RestartJob"

    def run(
        self, cluster: Cluster, owner: Owner, annotations: Mapping[str, str | None], dry_run: bool = False
    ) -> Owner:
        marked = {**annotations, COMMANDED: str(self.version)}
        owner = Patch(self.name).run(cluster, owner, marked, dry_run)
        with suppress(Conflict):  # sent before, and still waiting to be carried out
            cluster.create_command(owner.ref, self.action, f"gpufrag-{owner.uid}-{self.version}", dry_run)
        return owner


@dataclass(frozen=True)
class Evict:
    """Ask for the end of one very pod, which its controller then replaces."""

    pod: Pod
    name: str = "evict"

    def run(
        self, cluster: Cluster, owner: Owner, annotations: Mapping[str, str | None], dry_run: bool = False
    ) -> Owner:
        marked = {**annotations, EVICTED: f"{self.pod.name}/{self.pod.uid}"}
        owner = Patch(self.name).run(cluster, owner, marked, dry_run)
        with suppress(NotFound):  # gone already, as was asked for
            self._evict(cluster, dry_run)
        return owner

    def heard(self, cluster: Cluster) -> bool:
        """Whether the pod has come to its end, or is on its way there."""
        try:
            pod = cluster.get_pod(self.pod.namespace, self.pod.name)
        except NotFound:
            return True
        return pod.uid != self.pod.uid or pod.deleting or not pod.alive

    def _evict(self, cluster: Cluster, dry_run: bool) -> None:
        try:
            cluster.evict(self.pod, dry_run)
        except Conflict:  # another pod of that name has taken its place, or else somebody merely interfered
            if cluster.get_pod(self.pod.namespace, self.pod.name).uid == self.pod.uid:
                raise


Step = Patch | AwaitStopped | Command | Evict


def merged(one: Body, other: Body) -> dict[str, Any]:
    """Both merge patches as one; where both set a field, the second wins."""
    both = dict(one)
    for key, value in other.items():
        mine = both.get(key)
        both[key] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both


def evicted_pod(owner: Owner) -> Pod | None:
    """The pod that an earlier Evict of this owner named, or None."""
    name, slash, uid = owner.annotations.get(EVICTED, "").partition("/")
    return Pod(owner.namespace, name, uid) if slash else None
