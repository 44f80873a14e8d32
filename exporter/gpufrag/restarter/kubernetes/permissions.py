"""The permissions of the restarter: the table behind the chart's Roles and `gpufrag doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import objects as kinds
from .objects import RESOURCES, GroupKind
from .targets import TARGETS


@dataclass(frozen=True)
class Permission:
    """Verbs on one kind within a namespace, and their purpose."""

    kind: GroupKind
    verbs: tuple[str, ...]
    why: str
    targets: tuple[GroupKind, ...] = ()
    """Needed only to restart one of these; empty: always."""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """As a Role writes it: `pods/eviction`."""
        return "/".join(filter(None, (RESOURCES[self.kind].plural, self.subresource)))


PERMISSIONS: tuple[Permission, ...] = (
    Permission(kinds.POD, ("get", "list"), "to find the job of an alert, and to see when it has stopped"),
    Permission(kinds.EVENT, ("create",), "to report decisions on the job"),
    *(
        Permission(kind, ("get", "list", "patch"), "to restart it, and to find unfinished restarts", (kind,))
        for kind in TARGETS
    ),
    Permission(kinds.POD, ("create",), "to restart one pod", (kinds.LEADER_WORKER_SET, kinds.WORKFLOW), "eviction"),
    Permission(kinds.COMMAND, ("create",), "to make Volcano restart its Job", (kinds.VOLCANO_JOB,)),
    Permission(kinds.JOB, ("get",), "to get from a pod to its JobSet", (kinds.JOB_SET, kinds.TRAIN_JOB)),
    Permission(kinds.JOB_SET, ("get",), "to get from a pod to its TrainJob", (kinds.TRAIN_JOB,)),
    Permission(kinds.RAY_CLUSTER, ("get",), "to get from a pod to its RayJob", (kinds.RAY_JOB,)),
    Permission(kinds.REPLICA_SET, ("get",), "to get from a pod to its Deployment", (kinds.DEPLOYMENT,)),
    Permission(kinds.STATEFUL_SET, ("get",), "to get from a pod to its LeaderWorkerSet", (kinds.LEADER_WORKER_SET,)),
)


CIRCUIT = Permission(kinds.CONFIG_MAP, ("get", "patch"), "to store the state of the circuit breaker")
"""On the ConfigMap of `circuit.config_map`; without it, no job is restarted."""


def needed(targets: Iterable[GroupKind]) -> tuple[Permission, ...]:
    """Return the permissions to restart these kinds."""
    wanted = set(targets)
    return tuple(one for one in PERMISSIONS if not one.targets or wanted & set(one.targets))


def role_rules(targets: Iterable[GroupKind]) -> list[dict[str, Any]]:
    """Return the `rules` of a namespaced Role."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for one in needed(targets):
        granted = verbs.setdefault((one.kind.group, one.resource), [])
        granted += [verb for verb in one.verbs if verb not in granted]
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": granted}
        for (group, resource), granted in verbs.items()
    ]
