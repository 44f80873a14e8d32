"""Jobs whose controller can suspend them: suspend, wait until all is gone, resume. Counts as no failure anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import Refused
from .cluster import Body, Cluster, GroupKind, Owner, Pod
from .objects import holds
from .steps import AwaitStopped, Patch, Step

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "kueue.x-k8s.io/"


def says_suspended(owner: Owner) -> bool:
    """What nearly every controller writes once it has acted upon the field."""
    return holds(owner.raw, "Suspended")


@dataclass(frozen=True)
class Suspend:
    """A kind with a field that suspends it: `path` leads to it."""

    kind: GroupKind
    lost: str
    selector: Callable[[Owner], str]
    """The labels of its pods."""
    pods_wanted: Callable[[Owner], int]
    """How many pods run at least when all of it runs."""
    path: tuple[str, ...] = ("spec", "suspend")
    suspended: Callable[[Owner], bool] = says_suspended
    refusal: Callable[[Owner], Refused | None] = lambda owner: None
    """What stands against suspending this one, beside what stands against any."""

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        refusal = self._taken(owner) or self.refusal(owner)
        if refusal:
            raise refusal
        return (Patch("suspend", self._set(True)), *self._resume())

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        return self._resume() if self._wanted_suspended(owner) else ()

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        return cluster.list_pods(owner.namespace, self.selector(owner))

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        """Resumed before the last pod is gone, a job would for a while have two pods of one rank."""
        return self.suspended(owner) and not any(pod.alive for pod in self.pods(cluster, owner))

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        if self._wanted_suspended(owner) or self.suspended(owner):
            return False
        alive = [pod for pod in self.pods(cluster, owner) if pod.alive]
        return len(alive) >= self.pods_wanted(owner) and all(pod.ready and not pod.deleting for pod in alive)

    def _resume(self) -> tuple[Step, ...]:
        return AwaitStopped(), Patch("resume", self._set(False))

    def _set(self, value: bool) -> Body:
        body: Any = value
        for key in reversed(self.path):
            body = {key: body}
        return dict(body)

    def _wanted_suspended(self, owner: Owner) -> bool:
        return bool(field_at(owner.raw, self.path))

    def _taken(self, owner: Owner) -> Refused | None:
        if refusal := kueue_refusal(owner):
            return refusal
        if self._wanted_suspended(owner):
            return Refused("suspended", f"{owner.ref} is suspended already: somebody else will resume it")
        return None


def kueue_refusal(owner: Owner) -> Refused | None:
    """Kueue owns the suspend field of what it queues: a change is undone, or costs the job its place."""
    manager = owner.spec.get("managedBy") or field_at(owner.spec, ("runPolicy", "managedBy")) or ""
    if KUEUE_QUEUE not in owner.labels and not str(manager).startswith(KUEUE):
        return None
    return Refused(
        "kueue", f"{owner.ref} is queued by Kueue, which owns its suspension: restart its workers in place, or by hand"
    )


def field_at(raw: Body, path: tuple[str, ...]) -> Any:
    """The value at `path`, or None where any part of the way is absent."""
    place: Any = raw
    for key in path:
        place = (place or {}).get(key)
    return place
