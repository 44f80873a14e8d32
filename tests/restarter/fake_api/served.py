"""The kinds that the fake serves. Not the restarter's own table, so each checks the other."""

from __future__ import annotations

from typing import NamedTuple


class Served(NamedTuple):
    """One resource of the API."""

    group: str
    version: str
    plural: str
    kind: str
    custom: bool = False
    """Defined by a CustomResourceDefinition, without strategic merge patch."""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


ALL = (
    Served("", "v1", "configmaps", "ConfigMap"),
    Served("", "v1", "pods", "Pod"),
    Served("apps", "v1", "deployments", "Deployment"),
    Served("apps", "v1", "replicasets", "ReplicaSet"),
    Served("apps", "v1", "statefulsets", "StatefulSet"),
    Served("batch", "v1", "jobs", "Job"),
    Served("events.k8s.io", "v1", "events", "Event"),
    Served("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Served("argoproj.io", "v1alpha1", "workflows", "Workflow", True),
    Served("batch.volcano.sh", "v1alpha1", "jobs", "Job", True),
    Served("bus.volcano.sh", "v1alpha1", "commands", "Command", True),
    Served("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", True),
    Served("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", True),
    Served("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", True),
    Served("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor", True),
    Served("ray.io", "v1", "rayclusters", "RayCluster", True),
    Served("ray.io", "v1", "rayjobs", "RayJob", True),
    Served("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", True),
)


def of(group_version: str, kind: str) -> Served:
    """Return the resource of an object."""
    return next(one for one in ALL if (one.group_version, one.kind) == (group_version, kind))
