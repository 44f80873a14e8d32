"""What the restarter must be allowed, and why: the one table behind the chart's Roles and `gpufrag doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import kinds
from .cluster import Cluster, GroupKind
from .kinds import RESOURCES
from .targets import TARGETS


@dataclass(frozen=True)
class Permission:
    """Verbs on one kind within a namespace, and whom they are for."""

    kind: GroupKind
    verbs: tuple[str, ...]
    why: str
    targets: tuple[GroupKind, ...] = ()
    """Needed only where one of these is to be restarted; empty: always."""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """As a Role writes it: `pods/eviction`."""
        return "/".join(filter(None, (RESOURCES[self.kind].plural, self.subresource)))


PERMISSIONS: tuple[Permission, ...] = (
    Permission(kinds.POD, ("get", "list"), "to find whom an alert is about, and to see when all of a job has stopped"),
    Permission(kinds.EVENT, ("create",), "to tell in the job's own events what was decided"),
    *(
        Permission(
            kind, ("get", "list", "patch"), "to restart it, and to find one whose restart was cut short", (kind,)
        )
        for kind in TARGETS
    ),
    Permission(kinds.POD, ("create",), "to restart one pod", (kinds.LEADER_WORKER_SET, kinds.WORKFLOW), "eviction"),
    Permission(kinds.COMMAND, ("create",), "to tell Volcano to restart its Job", (kinds.VOLCANO_JOB,)),
    Permission(kinds.JOB, ("get",), "to get from a pod to its JobSet", (kinds.JOB_SET, kinds.TRAIN_JOB)),
    Permission(kinds.JOB_SET, ("get",), "to get from a pod to its TrainJob", (kinds.TRAIN_JOB,)),
    Permission(kinds.RAY_CLUSTER, ("get",), "to get from a pod to its RayJob", (kinds.RAY_JOB,)),
    Permission(kinds.REPLICA_SET, ("get",), "to get from a pod to its Deployment", (kinds.DEPLOYMENT,)),
    Permission(kinds.STATEFUL_SET, ("get",), "to get from a pod to its LeaderWorkerSet", (kinds.LEADER_WORKER_SET,)),
)


CIRCUIT = Permission(kinds.CONFIG_MAP, ("get", "patch"), "to remember whether the circuit is open")
"""In the restarter's own namespace, on the ConfigMap that `circuit.config_map` names; no job is restarted without."""


def needed(targets: Iterable[GroupKind]) -> tuple[Permission, ...]:
    """What restarting these kinds takes, and no more."""
    wanted = set(targets)
    return tuple(one for one in PERMISSIONS if not one.targets or wanted & set(one.targets))


def role_rules(targets: Iterable[GroupKind]) -> list[dict[str, Any]]:
    """The `rules` of a namespaced Role; each verb on each resource is named once."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for one in needed(targets):
        granted = verbs.setdefault((one.kind.group, one.resource), [])
        granted += [verb for verb in one.verbs if verb not in granted]
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": granted}
        for (group, resource), granted in verbs.items()
    ]


def lacking(cluster: Cluster, targets: Iterable[GroupKind], namespace: str) -> tuple[tuple[str, Permission], ...]:
    """Each verb that the cluster says it would not allow, with what it is for. Raises ClusterError."""
    return tuple(
        (verb, one)
        for one in needed(targets)
        for verb in one.verbs
        if not cluster.can_i(verb, one.kind, namespace, one.subresource)
    )
