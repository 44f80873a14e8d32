"""Kubernetes objects as records, and the kinds that the restarter supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..backend import Away

Body = Mapping[str, Any]


class GroupKind(NamedTuple):
    """The name of a kind across versions; printed as `Job.batch`."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


POD = GroupKind("", "Pod")
CONFIG_MAP = GroupKind("", "ConfigMap")
REPLICA_SET = GroupKind("apps", "ReplicaSet")
DEPLOYMENT = GroupKind("apps", "Deployment")
STATEFUL_SET = GroupKind("apps", "StatefulSet")
JOB = GroupKind("batch", "Job")
CRON_JOB = GroupKind("batch", "CronJob")
JOB_SET = GroupKind("jobset.x-k8s.io", "JobSet")
TRAIN_JOB = GroupKind("trainer.kubeflow.org", "TrainJob")
PYTORCH_JOB = GroupKind("kubeflow.org", "PyTorchJob")
VOLCANO_JOB = GroupKind("batch.volcano.sh", "Job")
COMMAND = GroupKind("bus.volcano.sh", "Command")
RAY_JOB = GroupKind("ray.io", "RayJob")
RAY_CLUSTER = GroupKind("ray.io", "RayCluster")
LEADER_WORKER_SET = GroupKind("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
WORKFLOW = GroupKind("argoproj.io", "Workflow")
EVENT = GroupKind("events.k8s.io", "Event")
EVICTION = GroupKind("policy", "Eviction")
POD_MONITOR = GroupKind("monitoring.coreos.com", "PodMonitor")


class Resource(NamedTuple):
    """The API version that was tested, and the name in a URL."""

    version: str
    plural: str


RESOURCES: Mapping[GroupKind, Resource] = {
    POD: Resource("v1", "pods"),
    CONFIG_MAP: Resource("v1", "configmaps"),
    REPLICA_SET: Resource("v1", "replicasets"),
    DEPLOYMENT: Resource("v1", "deployments"),
    STATEFUL_SET: Resource("v1", "statefulsets"),
    JOB: Resource("v1", "jobs"),
    JOB_SET: Resource("v1alpha2", "jobsets"),
    TRAIN_JOB: Resource("v1alpha1", "trainjobs"),
    PYTORCH_JOB: Resource("v1", "pytorchjobs"),
    VOLCANO_JOB: Resource("v1alpha1", "jobs"),
    COMMAND: Resource("v1alpha1", "commands"),
    RAY_JOB: Resource("v1", "rayjobs"),
    RAY_CLUSTER: Resource("v1", "rayclusters"),
    LEADER_WORKER_SET: Resource("v1", "leaderworkersets"),
    WORKFLOW: Resource("v1alpha1", "workflows"),
    EVENT: Resource("v1", "events"),
    POD_MONITOR: Resource("v1", "podmonitors"),
}


def group_version(kind: GroupKind) -> str:
    """Return `batch/v1`. KeyError for an unknown kind."""
    version = RESOURCES[kind].version
    return f"{kind.group}/{version}" if kind.group else version


def group_of(version: str) -> str:
    """Return `batch` of `batch/v1`, and the empty group of `v1`."""
    group, slash, _ = version.partition("/")
    return group if slash else ""


@dataclass(frozen=True)
class Ref:
    """One object, and no later one of the same name. An empty uid matches any."""

    group_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind(group_of(self.group_version), self.kind)

    def __str__(self) -> str:
        return f"{self.group_kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str
    uid: str
    owner_references: tuple[Body, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    """By the server's clock, RFC 3339; sorts as text."""
    phase: str = ""
    ready: bool = False
    deleting: bool = False
    ip: str | None = None
    unschedulable: str = ""
    """Why the scheduler has not placed it."""

    @property
    def alive(self) -> bool:
        """Whether its containers may still run."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def ref(self) -> Ref:
        return Ref("v1", "Pod", self.namespace, self.name, self.uid)


@dataclass(frozen=True)
class Owner:
    """The object that a restart changes, at the moment that `resource_version` names."""

    group_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    deleting: bool = False
    raw: Body = field(default_factory=dict)

    @property
    def ref(self) -> Ref:
        return Ref(self.group_version, self.kind, self.namespace, self.name, self.uid)

    @property
    def group_kind(self) -> GroupKind:
        return self.ref.group_kind

    @property
    def spec(self) -> Body:
        return self.raw.get("spec") or {}

    @property
    def status(self) -> Body:
        return self.raw.get("status") or {}


FINAL_CONDITIONS = ("Complete", "Completed", "Succeeded", "Failed", "FailureTarget", "SuccessCriteriaMet")
FINAL_VOLCANO = ("Aborting", "Aborted", "Completing", "Completed", "Terminating", "Terminated", "Failed")
_FINISHED: Mapping[GroupKind, Callable[[Body], bool]] = {
    RAY_JOB: lambda status: status.get("jobDeploymentStatus") in ("Complete", "Failed"),
    VOLCANO_JOB: lambda status: (status.get("state") or {}).get("phase") in FINAL_VOLCANO,
    WORKFLOW: lambda status: status.get("phase") in ("Succeeded", "Failed", "Error"),
}


def pod_from(raw: Any) -> Pod:
    """Raises Away if `raw` is not an object."""
    meta = _metadata(raw)
    status = raw.get("status") or {}
    scheduled: Any = next((one for one in status.get("conditions") or () if one.get("type") == "PodScheduled"), {})
    return Pod(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        owner_references=tuple(meta.get("ownerReferences") or ()),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        created=meta.get("creationTimestamp") or "",
        phase=status.get("phase", ""),
        ready=holds(raw, "Ready"),
        deleting="deletionTimestamp" in meta,
        ip=status.get("podIP"),
        unschedulable=_why(scheduled) if scheduled.get("status") == "False" else "",
    )


def _why(condition: Body) -> str:
    return f"{condition.get('reason') or 'Unschedulable'}: {condition.get('message') or 'no message'}"[:300]


def owner_from(raw: Any, version: str, kind: str) -> Owner:
    """Raises Away if `raw` is not an object. The items of a list do not name their kind, so the caller does."""
    meta = _metadata(raw)
    return Owner(
        group_version=version,
        kind=kind,
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        annotations=meta.get("annotations") or {},
        labels=meta.get("labels") or {},
        finished=_finished(GroupKind(group_of(version), kind), raw),
        deleting="deletionTimestamp" in meta,
        raw=raw,
    )


def controller_of(references: Any, namespace: str) -> Ref | None:
    """Return the owner that controls the object. Owners are always in the same namespace."""
    for one in references or ():
        if one.get("controller"):
            return Ref(one["apiVersion"], one["kind"], namespace, one["name"], one["uid"])
    return None


def holds(raw: Body, condition: str) -> bool:
    """Return whether a condition in the object's status is True."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def field_at(raw: Body, path: tuple[str, ...]) -> Any:
    """Return the value at `path`, or None."""
    place: Any = raw
    for key in path:
        place = (place or {}).get(key)
    return place


def nested(path: tuple[str, ...], value: Any) -> Body:
    """Return a merge patch that sets the value at `path`."""
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def merged(one: Body, other: Body) -> dict[str, Any]:
    """Return both merge patches as one; `other` wins where both set a field."""
    both = dict(one)
    for key, value in other.items():
        mine = both.get(key)
        both[key] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both


def selector_of(selector: Body) -> str:
    """Return a LabelSelector in the form of a URL."""
    equal = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    return ",".join(equal + [_expression(one) for one in selector.get("matchExpressions") or ()])


def _expression(one: Body) -> str:
    key, operator, values = one["key"], one["operator"], ",".join(one.get("values") or ())
    return {"Exists": key, "DoesNotExist": f"!{key}"}.get(operator) or f"{key} {operator.lower()} ({values})"


def _finished(kind: GroupKind, raw: Body) -> bool:
    by_phase = _FINISHED.get(kind)
    if by_phase is not None:
        return by_phase(raw.get("status") or {})
    return any(holds(raw, condition) for condition in FINAL_CONDITIONS)


def _metadata(raw: Any) -> Mapping[str, Any]:
    meta = raw.get("metadata") if isinstance(raw, Mapping) else None
    if not isinstance(meta, Mapping) or not {"name", "uid", "resourceVersion"} <= meta.keys():
        raise Away("the API server's answer is not an object: check its address")
    return meta
