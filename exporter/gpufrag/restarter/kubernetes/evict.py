"""Kinds of which one pod is evicted: its controller replaces it, and what must go with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import NotFound, Refused
from .cluster import Body, Cluster, GroupKind, Owner, Pod
from .kinds import LEADER_WORKER_SET, WORKFLOW
from .rollout import rolled_out, template_patch
from .steps import Evict, Patch, Step, evicted_pod
from .suspend import field_at, kueue_refusal


@dataclass(frozen=True)
class LeaderWorkerSet:
    """Evicts the pod, and with it its group; where groups are not recreated so, all of them are rolled over."""

    lost: str
    kind: GroupKind = LEADER_WORKER_SET

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        if refusal := kueue_refusal(owner):
            raise refusal
        if field_at(owner.spec, ("leaderWorkerTemplate", "restartPolicy")) in ("None", "Default"):
            path = ("spec", "leaderWorkerTemplate", "workerTemplate")
            return (Patch("annotate-template", template_patch(path, owner)),)
        return (Evict(pod),)

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        return evict_again(owner)

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        return cluster.list_pods(owner.namespace, f"leaderworkerset.sigs.k8s.io/name={owner.name}")

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        return not any(pod.alive for pod in self.pods(cluster, owner))

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        return evicted_is_gone(cluster, owner) and rolled_out(owner)


@dataclass(frozen=True)
class Workflow:
    """Evicts the pod of a step; only where Argo will try every step again after an error."""

    lost: str
    kind: GroupKind = WORKFLOW

    def plan(self, owner: Owner, pod: Pod) -> tuple[Step, ...]:
        if refusal := kueue_refusal(owner):
            raise refusal
        if lacking := sorted(set(_without_retry(owner))):
            raise Refused(
                "no-retry",
                f"{owner.ref} would fail: set retryStrategy.retryPolicy Always or OnError in {', '.join(lacking)}",
            )
        return (Evict(pod),)

    def rest(self, owner: Owner) -> tuple[Step, ...]:
        return evict_again(owner)

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        return cluster.list_pods(owner.namespace, f"workflows.argoproj.io/workflow={owner.name}")

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        return not any(pod.alive for pod in self.pods(cluster, owner))

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        pods = [pod for pod in self.pods(cluster, owner) if pod.alive]
        return evicted_is_gone(cluster, owner) and bool(pods) and all(pod.ready for pod in pods)


def evict_again(owner: Owner) -> tuple[Step, ...]:
    """The eviction that was under way: the uid keeps it from reaching any other pod."""
    pod = evicted_pod(owner)
    return (Evict(pod),) if pod else ()


def evicted_is_gone(cluster: Cluster, owner: Owner) -> bool:
    """Whether the pod named in the owner's annotation is no more, or there is none named."""
    pod = evicted_pod(owner)
    try:
        return pod is None or cluster.get_pod(pod.namespace, pod.name).uid != pod.uid
    except NotFound:
        return True


def _without_retry(owner: Owner) -> Iterator[str]:
    """The templates whose pods would not be tried again after an error; what is defined elsewhere is one of them."""
    spec: Any = field_at(owner.status, ("storedWorkflowTemplateSpec",)) or owner.spec
    common: Any = field_at(spec, ("templateDefaults", "retryStrategy")) or {}
    for template in spec.get("templates") or ({"name": "its template", "container": {}},):
        if _has_pod(template) and not _retries(template.get("retryStrategy") or common):
            yield str(template.get("name", "a template"))


def _has_pod(template: Body) -> bool:
    return any(key in template for key in ("container", "containerSet", "script", "resource"))


def _retries(strategy: Any) -> bool:
    return strategy.get("retryPolicy") in ("Always", "OnError") and str(strategy.get("limit", "1")) != "0"
