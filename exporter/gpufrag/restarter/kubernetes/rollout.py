"""Servers: a new pod template makes their controller replace every pod, by its own strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import Refused
from .cluster import ANNOTATIONS, Body, Cluster, GroupKind, Owner, Pod
from .steps import Patch, Step
from .suspend import field_at, kueue_refusal

RESTARTED = f"{ANNOTATIONS}/restarted-from-version"


@dataclass(frozen=True)
class Rollout:
    """A kind with a pod template at `spec.template`."""

    kind: GroupKind
    lost: str
    refusal: Callable[[Owner], Refused | None]
    """What stands against it, beside what stands against any."""

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        if refusal := kueue_refusal(owner) or self.refusal(owner):
            raise refusal
        return (Patch("annotate-template", template_patch(("spec", "template"), owner)),)

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        return ()

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        return cluster.list_pods(owner.namespace, selector_of(owner.spec.get("selector") or {}))

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        return not any(pod.alive for pod in self.pods(cluster, owner))

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        return rolled_out(owner)


def template_patch(path: tuple[str, ...], owner: Owner) -> Body:
    """A change of the pod template at `path`: the same again for the same version of the owner."""
    body: Any = {"metadata": {"annotations": {RESTARTED: owner.resource_version}}}
    for key in reversed(path):
        body = {key: body}
    return dict(body)


def rolled_out(owner: Owner) -> bool:
    """Whether the controller has seen the newest template, and every replica is of it and ready."""
    wanted, status = owner.spec.get("replicas", 1), owner.status
    generation = owner.raw["metadata"].get("generation", 0)
    seen = status.get("observedGeneration", generation) >= generation  # LeaderWorkerSet did not always tell
    return seen and all(status.get(key, 0) == wanted for key in ("replicas", "updatedReplicas", "readyReplicas"))


def selector_of(selector: Body) -> str:
    """A label selector as a URL has it."""
    equal = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    return ",".join(equal + [_expression(one) for one in selector.get("matchExpressions") or ()])


def _expression(one: Body) -> str:
    key, operator, values = one["key"], one["operator"], ",".join(one.get("values") or ())
    return {"Exists": key, "DoesNotExist": f"!{key}"}.get(operator) or f"{key} {operator.lower()} ({values})"


def deployment_refusal(owner: Owner) -> Refused | None:
    if owner.spec.get("paused"):
        return Refused("paused", f"{owner.ref} is paused, so nothing would roll out: kubectl rollout resume it first")
    return None


def stateful_set_refusal(owner: Owner) -> Refused | None:
    if field_at(owner.spec, ("updateStrategy", "type")) == "OnDelete":
        return Refused(
            "on-delete", f"{owner.ref} replaces a pod only when somebody deletes it: set updateStrategy RollingUpdate"
        )
    return None
