"""Volcano's Job: it takes commands. Each restart counts towards its maxRetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import Refused
from .cluster import Cluster, GroupKind, Owner, Pod
from .kinds import VOLCANO_JOB
from .steps import COMMANDED, Command, Step
from .suspend import kueue_refusal

DEFAULT_MAX_RETRY = 3


@dataclass(frozen=True)
class VolcanoJob:
    """Restarted by a Command object that Volcano removes as it carries it out."""

    lost: str
    kind: GroupKind = VOLCANO_JOB

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        if refusal := kueue_refusal(owner) or _out_of_retries(owner):
            raise refusal
        return (Command(version_of(owner)),)

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        """The command again, unless Volcano's count of versions shows that it has been carried out."""
        at = owner.annotations.get(COMMANDED)
        return (Command(version_of(owner)),) if at == str(version_of(owner)) else ()

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        return cluster.list_pods(owner.namespace, f"volcano.sh/job-name={owner.name}")

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        return not any(pod.alive for pod in self.pods(cluster, owner))

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        """Not before the command was carried out; until then all of it runs too."""
        state: Any = owner.status.get("state") or {}
        if state.get("phase") != "Running" or owner.annotations.get(COMMANDED) == str(version_of(owner)):
            return False
        return all(pod.ready and not pod.deleting for pod in self.pods(cluster, owner) if pod.alive)


def version_of(owner: Owner) -> int:
    """How often Volcano has made this job anew."""
    return int(owner.status.get("version") or 0)


def _out_of_retries(owner: Owner) -> Refused | None:
    retries, limit = owner.status.get("retryCount") or 0, owner.spec.get("maxRetry") or DEFAULT_MAX_RETRY
    if retries + 1 < limit:
        return None
    return Refused("max-retry", f"{owner.ref} has had {retries} of its {limit} tries, and would fail: raise maxRetry")
