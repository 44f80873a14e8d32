"""The owner of a pod: by references and uids, whatever the labels say."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest

from gpufrag.restarter.kubernetes import owners
from gpufrag.restarter.reasons import Refused
from restarter.fake_api import manifests
from restarter.fake_api.server import fake_api
from restarter.scene import connected, scene

TOPMOST = {
    "job": "Job.batch",
    "job_set": "JobSet.jobset.x-k8s.io",
    "train_job": "TrainJob.trainer.kubeflow.org",
    "pytorch_job": "PyTorchJob.kubeflow.org",
    "volcano_job": "Job.batch.volcano.sh",
    "ray_job": "RayJob.ray.io",
    "leader_worker_set": "LeaderWorkerSet.leaderworkerset.x-k8s.io",
    "workflow": "Workflow.argoproj.io",
    "deployment": "Deployment.apps",
    "stateful_set": "StatefulSet.apps",
}


@pytest.fixture
def api():
    with fake_api() as one:
        yield one


@pytest.fixture
def resolve(api):
    with contextlib.closing(connected(api)) as client:
        yield partial(owners.resolve, client, "ml")


@pytest.fixture
def reason(resolve):
    """The reason why a pod's owner is refused."""

    def reason(*pod: str) -> str:
        with pytest.raises(Refused) as refused:
            resolve(*pod)
        return refused.value.reason.label

    return reason


def owned(manifest: dict[str, Any], owner: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the manifest with a reference to its owner."""
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    references = {"ownerReferences": [{**reference, "controller": True, **changes}]}
    return {**manifest, "metadata": {**manifest["metadata"], **references}}


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_topmost_owner_is_found(make):
    with scene(make()) as it:
        assert it.job.kind == TOPMOST[make.__name__]


def test_later_pod_of_the_same_name_is_another(api, reason):
    uid = api.world.apply(manifests.bare_pod("one"))["metadata"]["uid"]
    assert reason("one", f"{uid}0") == "pod-replaced"
    assert reason("one", uid) == "bare-pod"
    assert reason("two") == "pod-gone"


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"uid": "11111111-0000-4000-8000-000000000000"}, "job-gone"),
        ({"uid": ""}, "job-gone"),
        ({"controller": False}, "bare-pod"),
    ],
)
def test_reference_must_name_the_controller_and_its_uid(api, reason, changes, label):
    job = api.world.apply(manifests.job())
    api.world.apply(owned(manifests.bare_pod("forged"), job, **changes), settle=False)
    assert reason("forged") == label


def test_labels_prove_nothing(api, reason):
    job, pod = api.world.apply(manifests.job()), manifests.bare_pod("forged")
    pod["metadata"]["labels"] = {"job-name": "train", "controller-uid": job["metadata"]["uid"]}
    api.world.apply(pod)
    assert reason("forged") == "bare-pod"


@pytest.fixture
def owned_job(api):
    """Create a job whose own controller is of this kind, and the job's pod."""

    def make(version: str, kind: str, make: Any = manifests.job) -> None:
        above = {"apiVersion": version, "kind": kind, "metadata": {"name": "above", "uid": "u"}}
        job = api.world.apply(owned(make(), above), settle=False)
        api.world.apply(owned(manifests.bare_pod("one"), job), settle=False)

    return make


@pytest.mark.parametrize(
    ("version", "kind", "make"),
    [
        ("kubeflow.org/v2beta1", "MPIJob", manifests.job),
        ("machinelearning.seldon.io/v1", "SeldonDeployment", manifests.deployment),
        ("serving.kserve.io/v1beta1", "InferenceService", manifests.deployment),
        ("example.com/v1", "Thing", manifests.job_set),
    ],
)
def test_job_of_an_unknown_controller_is_refused(owned_job, resolve, version, kind, make):
    """That controller would undo the change, or lose its job."""
    owned_job(version, kind, make)
    with pytest.raises(Refused, match=f"{kind}.{version.partition('/')[0]} ml/above") as refused:
        resolve("one")
    assert refused.value.reason.label == "unknown-controller"


def test_job_of_a_cron_job_is_restarted(owned_job, resolve):
    owned_job("batch/v1", "CronJob")
    assert str(resolve("one").owner.ref) == "Job.batch ml/train"


def test_owners_in_a_ring_are_refused(api, reason):
    one = api.world.apply(manifests.bare_pod("a"))
    two = api.world.apply(owned(manifests.bare_pod("b"), one))
    one["metadata"] = owned(one, two)["metadata"]
    assert reason("a") == "too-many-owners"
    assert len([call for call in api.log if call.method == "GET"]) == 1 + owners.MAX_OWNERS


def test_ray_cluster_without_a_ray_job_is_refused(api, reason):
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "shared"}, "spec": {}}
    api.world.apply(owned(manifests.bare_pod("worker"), api.world.apply(cluster)))
    assert reason("worker") == "unknown-controller"
