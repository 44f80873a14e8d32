"""How each kind of job is restarted: `TARGETS`, by group and kind.

A target stores a mark in the record's `order`, by which `state` later recognises the order's effect. The restart has
succeeded only when no pod is left from before it: a controller may undo a change, or report an old status.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import reasons
from ..backend import Conflict, NotFound, Stage, State
from ..reasons import Refused
from ..record import ANNOTATIONS, SUSPENDED, WAITING, RestartRecord
from .objects import (
    DEPLOYMENT,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    PYTORCH_JOB,
    RAY_JOB,
    STATEFUL_SET,
    TRAIN_JOB,
    VOLCANO_JOB,
    WORKFLOW,
    Body,
    GroupKind,
    Owner,
    Pod,
    field_at,
    holds,
    merged,
    nested,
    selector_of,
)

if TYPE_CHECKING:
    from .client import KubernetesClient

RESTARTED_BY = f"{ANNOTATIONS}/restarted-by"
"""In a pod template: the attempt that changed it."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
NODE_NAME = "workflows.argoproj.io/node-name"
OWN_MANAGERS = frozenset(
    {
        "kubernetes.io/job-controller",
        "jobset.sigs.k8s.io/jobset-controller",
        "trainer.kubeflow.org/trainjob-controller",
        "kubeflow.org/training-operator",
        "ray.io/kuberay-operator",
    }
)
"""Values of `managedBy` that name the kind's own controller."""
VOLCANO_MAX_RETRY = 3


@dataclass(frozen=True)
class Target(ABC):
    """One kind of job. `pod` is the pod that the alert names; None after a takeover."""

    kind: GroupKind
    cost: str
    """What a restart costs in addition to the work since the last checkpoint."""
    selector: Callable[[Owner], str]
    """The labels of its pods."""

    @abstractmethod
    def check(self, owner: Owner, pod: Pod | None) -> None:
        """Raise Refused if this job cannot be restarted now."""

    def pods(self, client: KubernetesClient, owner: Owner) -> tuple[Pod, ...]:
        return client.list_pods(owner.namespace, self.selector(owner))

    @abstractmethod
    def stop(self, client: KubernetesClient, owner: Owner, pod: Pod | None, record: RestartRecord, dry: bool) -> None:
        """See `JobBackend.stop`."""

    def start(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> None:
        """See `JobBackend.start`."""
        store(client, owner, replace(record, phase=WAITING), {})

    @abstractmethod
    def state(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> State: ...


def check_managers(owner: Owner) -> None:
    """Raise Refused if another controller owns the fields that a restart changes."""
    manager = owner.spec.get("managedBy") or field_at(owner.spec, ("runPolicy", "managedBy")) or ""
    if KUEUE_QUEUE in owner.labels or str(manager).startswith("kueue.x-k8s.io/"):
        raise Refused(reasons.KUEUE)
    if manager and manager not in OWN_MANAGERS:
        raise Refused(reasons.UNKNOWN_CONTROLLER, f"managedBy {manager}")


def store(client: KubernetesClient, owner: Owner, record: RestartRecord, body: Body, dry_run: bool = False) -> None:
    """Change the object and its record in one compare-and-swap."""
    both = merged(body, {"metadata": {"annotations": record.annotations()}})
    client.patch(owner.ref, both, owner.resource_version, dry_run)


@dataclass(frozen=True)
class OldPods:
    """The pods from before a restart: their number, and when the newest was created."""

    newest: str
    count: int

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> OldPods:
        alive = [pod for pod in pods if pod.alive]
        return cls(max((pod.created for pod in alive), default=""), sum(not pod.deleting for pod in alive))

    @classmethod
    def parse(cls, order: str | None) -> OldPods:
        newest, _, count = (order or "").partition(" ")
        return cls(newest, int(count) if count.isascii() and count.isdigit() and len(count) < 8 else 1)

    def __str__(self) -> str:
        return f"{self.newest} {self.count}"

    def progress(self, pods: Iterable[Pod], at_least: int) -> State:
        """Return RUNNING if no old pod is alive and `at_least` new ones are ready or have succeeded."""
        pods = list(pods)
        alive = [pod for pod in pods if pod.alive]
        if old := [pod.name for pod in alive if self.newest and pod.created <= self.newest]:
            return State(Stage.STARTING, f"pods from before the restart are still there: {some(old)}")
        return pods_progress(alive, at_least - sum(not pod.alive and pod.created > self.newest for pod in pods))


def pods_progress(alive: list[Pod], at_least: int) -> State:
    if unplaced := [pod for pod in alive if pod.unschedulable]:
        first = unplaced[0]
        return State(Stage.STARTING, f"pod {first.name}: {first.unschedulable}", needs_resources=True)
    if stopping := [pod.name for pod in alive if pod.deleting]:
        return State(Stage.STARTING, f"pods are terminating: {some(stopping)}")
    if len(alive) < at_least:
        return State(Stage.STARTING, f"{len(alive)} of {at_least} pods exist")
    if unready := [pod.name for pod in alive if not pod.ready]:
        return State(Stage.STARTING, f"pods are not ready: {some(unready)}")
    return State(Stage.RUNNING) if alive else State(Stage.STARTING, "no pod exists")


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@dataclass(frozen=True)
class Suspend(Target):
    """Suspend, wait until no pod is left, resume. No controller counts this as a failure."""

    path: tuple[str, ...] = ("spec", "suspend")
    suspended: Callable[[Owner], bool] = lambda owner: holds(owner.raw, "Suspended")
    """Whether its controller reports that it is suspended."""
    refusal: Callable[[Owner], Refused | None] = lambda owner: None
    elastic: Callable[[Owner], bool] = lambda owner: False
    """Whether an autoscaler may run fewer pods than before."""

    def check(self, owner: Owner, pod: Pod | None) -> None:
        check_managers(owner)
        if refusal := self.refusal(owner):
            raise refusal
        if field_at(owner.raw, self.path):
            raise Refused(reasons.SUSPENDED)

    def stop(self, client: KubernetesClient, owner: Owner, pod: Pod | None, record: RestartRecord, dry: bool) -> None:
        order = str(OldPods.of(self.pods(client, owner)))
        store(client, owner, replace(record, phase=SUSPENDED, order=order), nested(self.path, True), dry)

    def start(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> None:
        store(client, owner, replace(record, phase=WAITING), nested(self.path, False))

    def state(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> State:
        pods = self.pods(client, owner)
        if field_at(owner.raw, self.path):
            alive = [pod.name for pod in pods if pod.alive]
            if alive:
                return State(Stage.STOPPING, f"pods are terminating: {some(alive)}")
            return State(Stage.STOPPED, "the job is suspended", confirmed=self.suspended(owner))
        if self.suspended(owner):
            return State(Stage.STARTING, "its controller still reports it as suspended")
        old = OldPods.parse(record.order)
        return old.progress(pods, 1 if self.elastic(owner) else old.count)


@dataclass(frozen=True)
class Rollout(Target):
    """A new pod template makes the controller replace every pod, by the object's own strategy."""

    refusal: Callable[[Owner], Refused | None] = lambda owner: None
    template: tuple[str, ...] = ("spec", "template")

    def check(self, owner: Owner, pod: Pod | None) -> None:
        check_managers(owner)
        if refusal := self.refusal(owner):
            raise refusal

    def stop(self, client: KubernetesClient, owner: Owner, pod: Pod | None, record: RestartRecord, dry: bool) -> None:
        order = str(OldPods.of(self.pods(client, owner)))
        body = nested((*self.template, "metadata", "annotations", RESTARTED_BY), record.by or "gpufrag")
        store(client, owner, replace(record, phase=WAITING, order=order), body, dry)

    def state(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> State:
        mark = field_at(owner.raw, (*self.template, "metadata", "annotations", RESTARTED_BY))
        if mark != (record.by or "gpufrag"):
            return State(Stage.STARTING, "another client changed the pod template back")
        if not rolled_out(owner):
            return State(Stage.STARTING, "the rollout is not complete")
        return OldPods.parse(record.order).progress(self.pods(client, owner), 1)


def rolled_out(owner: Owner) -> bool:
    """Return whether the controller has seen the newest template, and every replica is of it and ready."""
    wanted, status = owner.spec.get("replicas", 1), owner.status
    generation = owner.raw["metadata"].get("generation", 0)
    seen = status.get("observedGeneration", generation) >= generation  # old LeaderWorkerSets do not report it
    return seen and all(status.get(key, 0) == wanted for key in ("replicas", "updatedReplicas", "readyReplicas"))


@dataclass(frozen=True)
class Evict(Target):
    """Evict the pod that the alert names; its controller replaces it. The order is the pod's name and uid."""

    refusal: Callable[[Owner, Pod | None], Refused | None] = lambda owner, pod: None
    whole: Callable[[Owner], bool] = lambda owner: True
    """Whether the controller reports that all of it runs."""
    instead: Rollout | None = None
    """Used where the controller does not recreate what belongs to the pod; see `rolls`."""
    rolls: Callable[[Owner], bool] = lambda owner: False

    def check(self, owner: Owner, pod: Pod | None) -> None:
        check_managers(owner)
        if refusal := self.refusal(owner, pod):
            raise refusal

    def stop(self, client: KubernetesClient, owner: Owner, pod: Pod | None, record: RestartRecord, dry: bool) -> None:
        if self.instead and self.rolls(owner):
            return self.instead.stop(client, owner, pod, record, dry)
        victim = pod or _evicted(owner, record)
        assert victim is not None, "a restart begins with a pod"
        ordered = replace(record, phase=WAITING, order=f"{victim.name}/{victim.uid}")
        store(client, owner, ordered, {}, dry)
        try:
            client.evict(victim, dry)
        except NotFound:  # gone already
            pass
        except Conflict:  # another pod has its name, or another client interfered
            if client.get_pod(victim.namespace, victim.name).uid == victim.uid:
                raise
        return None

    def state(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> State:
        if self.instead and self.rolls(owner):
            return self.instead.state(client, owner, record)
        if victim := _evicted(owner, record):
            with suppress(NotFound):
                pod = client.get_pod(victim.namespace, victim.name)
                if pod.uid == victim.uid and pod.deleting:
                    return State(Stage.STARTING, f"pods from before the restart are still there: {pod.name}")
                if pod.uid == victim.uid and pod.alive:
                    return State(Stage.ORDERED, runs=True)
        state = pods_progress([pod for pod in self.pods(client, owner) if pod.alive], 1)
        if state.stage is Stage.RUNNING and not self.whole(owner):
            return State(Stage.STARTING, "its controller does not report all of it as ready")
        return state


def _evicted(owner: Owner, record: RestartRecord) -> Pod | None:
    name, slash, uid = (record.order or "").partition("/")
    return Pod(owner.namespace, name, uid) if slash else None


@dataclass(frozen=True)
class VolcanoJob(Target):
    """A Command object, which Volcano deletes as it carries it out. The order is the job's version before it."""

    def check(self, owner: Owner, pod: Pod | None) -> None:
        check_managers(owner)
        used, limit = owner.status.get("retryCount") or 0, owner.spec.get("maxRetry") or VOLCANO_MAX_RETRY
        if used + 1 >= limit:
            raise Refused(reasons.NO_RETRIES_LEFT, f"{used} of maxRetry {limit} used")

    def stop(self, client: KubernetesClient, owner: Owner, pod: Pod | None, record: RestartRecord, dry: bool) -> None:
        version = _version(owner)
        store(client, owner, replace(record, phase=WAITING, order=version), {}, dry)
        with suppress(Conflict):  # sent before, and not carried out yet
            client.create_command(owner.ref, "RestartJob", f"gpufrag-{owner.uid}-{version}", dry)

    def state(self, client: KubernetesClient, owner: Owner, record: RestartRecord) -> State:
        alive = [pod for pod in self.pods(client, owner) if pod.alive]
        if record.order == _version(owner):
            return State(Stage.ORDERED, runs=bool(alive))
        phase = field_at(owner.status, ("state", "phase"))
        if phase != "Running":
            waits = phase == "Pending" and not any(pod.deleting for pod in alive)
            return State(Stage.STARTING, f"Volcano reports the phase {phase}", needs_resources=waits)
        return pods_progress(alive, 1)


def _version(owner: Owner) -> str:
    """Volcano increments it with each restart."""
    return str(owner.status.get("version") or 0)


def _ray_refusal(owner: Owner) -> Refused | None:
    if owner.spec.get("submissionMode") == "InteractiveMode":
        return Refused(reasons.INTERACTIVE_MODE)
    if owner.spec.get("clusterSelector"):
        return Refused(reasons.SHARED_CLUSTER)
    if not owner.spec.get("shutdownAfterJobFinishes"):
        return Refused(reasons.CLUSTER_KEPT)
    return None


def _workflow_refusal(owner: Owner, pod: Pod | None) -> Refused | None:
    """Argo must retry the evicted step: by every template with a pod, because the step's own is not always known."""
    lacking, limits = [], []
    for name, strategy in _strategies(owner):
        limit = str(strategy.get("limit", ""))
        if strategy.get("retryPolicy") not in ("Always", "OnError") or strategy.get("expression") or limit == "0":
            lacking.append(name)
        elif limit:
            limits.append(limit)
    if lacking:
        return Refused(reasons.NO_RETRY, f"templates: {some(sorted(set(lacking)))}")
    if not limits or pod is None:
        return None
    attempt = re.search(r"\((\d{1,9})\)$", pod.annotations.get(NODE_NAME, ""))
    known = [int(limit) for limit in limits if limit.isascii() and limit.isdigit() and len(limit) < 10]
    if attempt is None or len(known) < len(limits):
        return Refused(reasons.NO_RETRIES_LEFT, f"the retries left are unknown, limit {some(limits)}")
    if int(attempt[1]) >= min(known):
        return Refused(reasons.NO_RETRIES_LEFT, f"{attempt[1]} of limit {min(known)} used")
    return None


def _strategies(owner: Owner) -> Iterator[tuple[str, Any]]:
    """Yield name and retryStrategy of each template with a pod. A template defined elsewhere counts as one without."""
    spec: Any = field_at(owner.status, ("storedWorkflowTemplateSpec",)) or owner.spec
    common: Any = field_at(spec, ("templateDefaults", "retryStrategy")) or {}
    for template in spec.get("templates") or ({"name": "defined elsewhere", "container": {}},):
        if any(key in template for key in ("container", "containerSet", "script", "resource")):
            yield str(template.get("name", "without a name")), template.get("retryStrategy") or common


def _ray_selector(owner: Owner) -> str:
    """Each resumption creates a cluster of a new name."""
    return f"ray.io/cluster={owner.status.get('rayClusterName') or owner.name}"


def _own_selector(owner: Owner) -> str:
    return selector_of(owner.spec.get("selector") or {})


def _label(name: str) -> Callable[[Owner], str]:
    return lambda owner: f"{name}={owner.name}"


_LWS_LABEL = _label("leaderworkerset.sigs.k8s.io/name")
_LWS_COST = "all pods of the pod's group are recreated; the group does not serve until they run"
_ALL: tuple[Target, ...] = (
    Suspend(
        JOB,
        cost="its start time and deadline are reset; completed indexes stay completed",
        selector=lambda owner: f"batch.kubernetes.io/controller-uid={owner.uid}",
    ),
    Suspend(
        JOB_SET,
        cost="all its Jobs stop and start together; its restart counter does not change",
        selector=_label("jobset.sigs.k8s.io/jobset-name"),
    ),
    Suspend(
        TRAIN_JOB,
        cost="all its nodes stop and start together; no restart is counted",
        selector=_label("jobset.sigs.k8s.io/jobset-name"),
    ),
    Suspend(
        PYTORCH_JOB,
        cost="all its replicas stop and start together; no restart is counted",
        selector=_label("training.kubeflow.org/job-name"),
        path=("spec", "runPolicy", "suspend"),
        elastic=lambda owner: bool(owner.spec.get("elasticPolicy")),
    ),
    Suspend(
        RAY_JOB,
        cost="its Ray cluster is deleted, with all actors and the object store",
        selector=_ray_selector,
        suspended=lambda owner: owner.status.get("jobDeploymentStatus") == "Suspended",
        refusal=_ray_refusal,
        elastic=lambda owner: bool(field_at(owner.spec, ("rayClusterSpec", "enableInTreeAutoscaling"))),
    ),
    VolcanoJob(
        VOLCANO_JOB,
        selector=_label("volcano.sh/job-name"),
        cost="all its tasks stop and start together; one of its maxRetry is used",
    ),
    Evict(
        LEADER_WORKER_SET,
        cost=_LWS_COST,
        selector=_LWS_LABEL,
        whole=rolled_out,
        instead=Rollout(
            LEADER_WORKER_SET,
            cost=_LWS_COST,
            template=("spec", "leaderWorkerTemplate", "workerTemplate"),
            selector=_LWS_LABEL,
        ),
        rolls=lambda owner: field_at(owner.spec, ("leaderWorkerTemplate", "restartPolicy")) in ("None", "Default"),
    ),
    Evict(
        WORKFLOW,
        cost="the step starts from the beginning; one of its retries is used",
        selector=_label("workflows.argoproj.io/workflow"),
        refusal=_workflow_refusal,
    ),
    Rollout(
        DEPLOYMENT,
        selector=_own_selector,
        cost="pods are replaced according to the Deployment's strategy; with maxSurge, it temporarily needs more GPUs",
        refusal=lambda owner: Refused(reasons.ROLLOUT_PAUSED) if owner.spec.get("paused") else None,
    ),
    Rollout(
        STATEFUL_SET,
        selector=_own_selector,
        cost="every pod is replaced in place, one after another, from the highest index to the lowest",
        refusal=lambda owner: (
            Refused(reasons.ON_DELETE) if field_at(owner.spec, ("updateStrategy", "type")) == "OnDelete" else None
        ),
    ),
)

TARGETS: Mapping[GroupKind, Target] = {target.kind: target for target in _ALL}
