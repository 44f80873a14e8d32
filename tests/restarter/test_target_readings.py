"""When a target says that nothing of a job runs, and when that all of it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpufrag.restarter.errors import NotFound
from gpufrag.restarter.kubernetes import kinds
from gpufrag.restarter.kubernetes.cluster import GroupKind, Owner, Pod
from gpufrag.restarter.kubernetes.objects import owner_from
from gpufrag.restarter.kubernetes.rollout import rolled_out, selector_of
from gpufrag.restarter.kubernetes.steps import EVICTED
from gpufrag.restarter.kubernetes.suspend import Suspend
from gpufrag.restarter.kubernetes.targets import TARGETS
from restarter.fake_api import manifests

READY = Pod("ml", "train-0", "u0", phase="Running", ready=True)
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True"}]}


@dataclass(frozen=True)
class Pods:
    """A cluster that has these pods, whoever asks."""

    pods: tuple[Pod, ...]

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        return self.pods

    def get_pod(self, namespace: str, name: str) -> Pod:
        for pod in self.pods:
            if pod.name == name:
                return pod
        raise NotFound("gone")


def owner_of(manifest: dict[str, Any], status: Any = None, **spec: Any) -> Owner:
    meta = {**manifest["metadata"], "uid": "u", "resourceVersion": "1", "generation": 2}
    raw = {"metadata": meta, "spec": {**manifest["spec"], **spec}, "status": status or {}}
    return owner_from(raw, manifest["apiVersion"], manifest["kind"])


def running(pods: tuple[Pod, ...], status: Any = None, **spec: Any) -> bool:
    owner = owner_of(manifests.job(), status, **spec)
    return TARGETS[kinds.JOB].running(Pods(pods), owner)  # type: ignore[arg-type]


def stopped(pods: tuple[Pod, ...], status: Any) -> bool:
    return TARGETS[kinds.JOB].stopped(Pods(pods), owner_of(manifests.job(), status, suspend=True))  # type: ignore[arg-type]


def test_all_of_it_runs_when_all_ranks_are_ready() -> None:
    assert running((READY, READY))
    assert not running((READY,))
    assert not running((READY, replace(READY, ready=False)))
    assert not running((READY, READY, replace(READY, deleting=True)))
    assert running((READY, READY, replace(READY, phase="Failed", ready=False)))


def test_what_is_or_shall_be_suspended_does_not_run() -> None:
    assert not running((READY, READY), suspend=True)
    assert not running((READY, READY), status=SUSPENDED)


def test_nothing_runs_when_the_controller_says_so_and_no_pod_lives() -> None:
    assert stopped((), SUSPENDED)
    assert stopped((replace(READY, phase="Failed"),), SUSPENDED)
    assert not stopped((), {})
    assert not stopped((replace(READY, deleting=True),), SUSPENDED)


def ray_cluster(*groups: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    manifest = manifests.ray_job()
    return {**manifest, "spec": {"rayClusterSpec": {**cluster, "workerGroupSpecs": list(groups)}}}


WANTED = [
    (manifests.job(parallelism=4, completions=6), {"succeeded": 3}, 3),
    (manifests.job(parallelism=4, completions=None), {}, 4),
    (manifests.job_set(), {}, 2),
    (manifests.job_set(), {"replicatedJobsStatus": [{"name": "workers", "succeeded": 1}]}, 0),
    (manifests.train_job(), {}, 2),
    (manifests.pytorch_job(), {}, 2),
    (manifests.ray_job(), {}, 2),
    (ray_cluster({"replicas": 2, "numOfHosts": 2}, {"replicas": 1}), {}, 6),
    (ray_cluster({"replicas": 4, "minReplicas": 1}, enableInTreeAutoscaling=True), {}, 2),
]


@pytest.mark.parametrize(
    ("manifest", "status", "count"), WANTED, ids=lambda one: one["kind"] if "kind" in str(one) else ""
)
def test_how_many_pods_a_job_wants(manifest: dict[str, Any], status: Any, count: int) -> None:
    owner = owner_of(manifest, status)
    target = TARGETS[owner.group_kind]
    assert isinstance(target, Suspend)
    assert target.pods_wanted(owner) == count


DONE = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}


@pytest.mark.parametrize("make", [manifests.deployment, manifests.stateful_set, manifests.leader_worker_set])
def test_a_rollout_is_over_when_every_count_says_so(make: Any) -> None:
    assert rolled_out(owner_of(make(), DONE))
    for key in DONE:
        assert not rolled_out(owner_of(make(), {**DONE, key: 1}))
        absent = {other: DONE[other] for other in DONE if other != key}
        assert rolled_out(owner_of(make(), absent)) == (key == "observedGeneration")
    assert not rolled_out(owner_of(make(), {**DONE, "replicas": 3}))


@pytest.mark.parametrize("make", [manifests.leader_worker_set, manifests.workflow])
def test_nothing_runs_again_while_the_evicted_pod_is_there(make: Any) -> None:
    """However good the status looks: its controller may not have looked yet."""
    owner = replace(owner_of(make(), DONE), annotations={EVICTED: "train-0/u0"})
    target, another = TARGETS[owner.group_kind], replace(READY, uid="u1")
    assert not target.running(Pods((READY,)), owner)  # type: ignore[arg-type]
    assert target.running(Pods((another,)), owner)  # type: ignore[arg-type]
    assert target.running(Pods((replace(another, name="train-1"),)), owner)  # type: ignore[arg-type]


def test_a_selector_is_written_as_a_url_has_it() -> None:
    expressions = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["3"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"x": "y"}, "matchExpressions": expressions}
    assert selector_of(selector) == "x=y,a in (1,2),b notin (3),c,!d"


def test_the_pods_of_a_ray_job_are_those_of_its_cluster_of_now() -> None:
    target = TARGETS[kinds.RAY_JOB]
    assert isinstance(target, Suspend)
    assert target.selector(owner_of(manifests.ray_job(), {"rayClusterName": "train-abc"})) == "ray.io/cluster=train-abc"


@pytest.mark.parametrize("kind", TARGETS, ids=str)
def test_a_target_is_found_by_the_kind_it_is_for(kind: GroupKind) -> None:
    assert TARGETS[kind].kind == kind
