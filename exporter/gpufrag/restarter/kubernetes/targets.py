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
from typing import Any, Protocol

from ..errors import Refused
from . import kinds
from .cluster import Cluster, GroupKind, Owner, Pod
from .evict import LeaderWorkerSet, Workflow
from .rollout import Rollout, deployment_refusal, stateful_set_refusal
from .steps import Step
from .suspend import Suspend, field_at
from .volcano import VolcanoJob


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
        """What is left of a restart that somebody began and did not end, by the owner's state; empty: nothing.

        An eviction may be in it that was done: done again, it changes nothing.
        """

    def pods(self, cluster: Cluster, owner: Owner) -> tuple[Pod, ...]:
        """Its pods, found by the labels that its controller gives them."""

    def stopped(self, cluster: Cluster, owner: Owner) -> bool:
        """Whether nothing of it runs any more, by `owner` as just read."""

    def running(self, cluster: Cluster, owner: Owner) -> bool:
        """Whether all of it runs again, by `owner` as just read."""


def _job_pods(owner: Owner) -> int:
    """Those that are still to succeed, no more than run at once."""
    parallel = owner.spec.get("parallelism", 1)
    completions, succeeded = owner.spec.get("completions"), owner.status.get("succeeded", 0)
    return int(parallel if completions is None else min(parallel, completions - succeeded))


def _job_set_pods(owner: Owner) -> int:
    """Of those Jobs that have not succeeded yet."""
    status: Any = owner.status.get("replicatedJobsStatus") or ()
    done = {one["name"]: int(one.get("succeeded", 0)) for one in status}
    jobs: Any = owner.spec.get("replicatedJobs") or ()
    return sum((int(job.get("replicas", 1)) - done.get(job["name"], 0)) * _parallelism(job) for job in jobs)


def _parallelism(job: Any) -> int:
    return int(field_at(job, ("template", "spec", "parallelism")) or 1)


def _pytorch_pods(owner: Owner) -> int:
    replicas: Any = owner.spec.get("pytorchReplicaSpecs") or {}
    return sum(int(one.get("replicas", 1)) for one in replicas.values())


def _train_job_pods(owner: Owner) -> int:
    return int(field_at(owner.spec, ("trainer", "numNodes")) or 1)


def _ray_pods(owner: Owner) -> int:
    """The head and the workers; of those that an autoscaler may take away, none."""
    cluster: Any = owner.spec.get("rayClusterSpec") or {}
    key = "minReplicas" if cluster.get("enableInTreeAutoscaling") else "replicas"
    groups = cluster.get("workerGroupSpecs") or ()
    return 1 + sum(int(group.get(key) or 0) * int(group.get("numOfHosts", 1)) for group in groups)


def _ray_selector(owner: Owner) -> str:
    """By the name of the cluster that it has now: each resumption makes a new one."""
    return f"ray.io/cluster={owner.status.get('rayClusterName') or owner.name}"


def _ray_refusal(owner: Owner) -> Refused | None:
    """KubeRay marks a RayJob as failed that is suspended without these."""
    if owner.spec.get("clusterSelector"):
        return Refused("shared-cluster", f"{owner.ref} runs in a cluster that it shares: a restart would end others")
    if not owner.spec.get("shutdownAfterJobFinishes"):
        return Refused("keeps-cluster", f"{owner.ref} cannot be suspended: set shutdownAfterJobFinishes: true")
    return None


_ALL: tuple[Target, ...] = (
    Suspend(
        kinds.JOB,
        lost="its start time and deadline begin anew; indexes that were done stay done",
        selector=lambda owner: f"batch.kubernetes.io/controller-uid={owner.uid}",
        pods_wanted=_job_pods,
    ),
    Suspend(
        kinds.JOB_SET,
        lost="all its Jobs are suspended and resumed together; its restarts are not counted up",
        selector=lambda owner: f"jobset.sigs.k8s.io/jobset-name={owner.name}",
        pods_wanted=_job_set_pods,
    ),
    Suspend(
        kinds.TRAIN_JOB,
        lost="all its nodes are stopped and started together; no restart is counted",
        selector=lambda owner: f"jobset.sigs.k8s.io/jobset-name={owner.name}",
        pods_wanted=_train_job_pods,
    ),
    Suspend(
        kinds.PYTORCH_JOB,
        lost="all its replicas are stopped and started together; no restart is counted",
        selector=lambda owner: f"training.kubeflow.org/job-name={owner.name}",
        pods_wanted=_pytorch_pods,
        path=("spec", "runPolicy", "suspend"),
    ),
    Suspend(
        kinds.RAY_JOB,
        lost="its whole Ray cluster goes, with every actor and all in the object store",
        selector=_ray_selector,
        pods_wanted=_ray_pods,
        suspended=lambda owner: owner.status.get("jobDeploymentStatus") == "Suspended",
        refusal=_ray_refusal,
    ),
    VolcanoJob(lost="all its tasks are stopped and started together; one of its maxRetry is used up"),
    LeaderWorkerSet(lost="the pod's whole group is made anew, and serves nothing meanwhile"),
    Workflow(lost="the step begins anew; one of its retries is used up"),
    Rollout(
        kinds.DEPLOYMENT,
        lost="every pod is replaced, by its strategy: with maxSurge it needs GPUs beyond its own meanwhile",
        refusal=deployment_refusal,
    ),
    Rollout(
        kinds.STATEFUL_SET,
        lost="every pod is replaced in place, one after another, the last first",
        refusal=stateful_set_refusal,
    ),
)

TARGETS: Mapping[GroupKind, Target] = {target.kind: target for target in _ALL}
