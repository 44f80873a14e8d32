"""Every kind that the restarter knows, with the name and version under which an API server serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .cluster import GroupKind

POD = GroupKind("", "Pod")
CONFIG_MAP = GroupKind("", "ConfigMap")
REPLICA_SET = GroupKind("apps", "ReplicaSet")
DEPLOYMENT = GroupKind("apps", "Deployment")
STATEFUL_SET = GroupKind("apps", "StatefulSet")
JOB = GroupKind("batch", "Job")
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
    """How a kind is addressed: the version that was tried, and its name in a URL."""

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
    """`batch/v1`; KeyError for a kind that is not known."""
    version = RESOURCES[kind].version
    return f"{kind.group}/{version}" if kind.group else version
