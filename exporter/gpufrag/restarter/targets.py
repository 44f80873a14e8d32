"""How each kind of job is restarted: `TARGETS`, by group and kind.

target = TARGETS[owner.group_kind]
for step in target.plan(owner, pod):
    if isinstance(step, AwaitStopped):
        ...  # until target.stopped(cluster, owner)
    else:
        owner = step.run(cluster, owner, memory.annotations(), dry_run)
...  # until target.running(cluster, owner)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .cluster import Cluster, GroupKind, Owner, Pod
from .steps import Step


class Target(Protocol):
    """One kind of job."""

    @property
    def kind(self) -> GroupKind: ...

    @property
    def lost(self) -> str:
        """What a restart costs beyond the work since the last checkpoint: one sentence for events and pages."""

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        """All steps of a restart that begins now, because of `pod`. Raises Refused where this one must not be."""

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        """What is left of a restart that somebody began and did not end, by the owner's state; empty: nothing."""

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        """Whether nothing of it runs any more, by `owner` as just read."""

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        """Whether all of it runs again, by `owner` as just read."""


TARGETS: Mapping[GroupKind, Target] = {}
