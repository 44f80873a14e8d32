"""The owner of a pod: by references and uids, whatever the labels say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpufrag.restarter.kubernetes.client import KubernetesClient
from gpufrag.restarter.kubernetes.owners import MAX_OWNERS, resolve
from gpufrag.restarter.reasons import Refused
from restarter.fake_api import manifests
from restarter.fake_api.served import of
from restarter.fake_api.server import FakeApi, fake_api
from restarter.scene import scene

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
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        yield one


@pytest.fixture
def client(api: FakeApi) -> Iterator[KubernetesClient]:
    one = KubernetesClient(api.config(), trust_env=False)
    yield one
    one.close()


def pod(name: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    manifest = manifests.bare_pod(name)
    references = {"ownerReferences": [{**owner, "controller": True}]} if owner else {}
    return {**manifest, "metadata": {**manifest["metadata"], **references}}


def reference(raw: dict[str, Any], **changed: str) -> dict[str, Any]:
    kind = {"apiVersion": raw["apiVersion"], "kind": raw["kind"]}
    return {**kind, "name": raw["metadata"]["name"], "uid": raw["metadata"]["uid"], **changed}


def refusal(client: KubernetesClient, name: str, uid: str | None = None) -> str:
    with pytest.raises(Refused) as refused:
        resolve(client, "ml", name, uid)
    return refused.value.reason.label


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_topmost_owner_is_found(make: Any) -> None:
    with scene(make()) as it:
        assert it.job.kind == TOPMOST[make.__name__]


def test_later_pod_of_the_same_name_is_another(api: FakeApi, client: KubernetesClient) -> None:
    uid = api.world.apply(pod("one"))["metadata"]["uid"]
    assert refusal(client, "one", f"{uid}0") == "pod-replaced"
    assert refusal(client, "one", uid) == "bare-pod"
    assert refusal(client, "two") == "pod-gone"


@pytest.mark.parametrize("uid", ["11111111-0000-4000-8000-000000000000", ""])
def test_owner_must_have_the_referenced_uid(api: FakeApi, client: KubernetesClient, uid: str) -> None:
    job = api.world.apply(manifests.job())
    api.world.apply(pod("forged", reference(job, uid=uid)), settle=False)
    assert refusal(client, "forged") == "job-gone"


def test_labels_prove_nothing(api: FakeApi, client: KubernetesClient) -> None:
    job = api.world.apply(manifests.job())
    manifest = pod("forged")
    manifest["metadata"]["labels"] = {"job-name": "train", "controller-uid": job["metadata"]["uid"]}
    api.world.apply(manifest)
    assert refusal(client, "forged") == "bare-pod"


def test_owner_that_is_no_controller_is_ignored(api: FakeApi, client: KubernetesClient) -> None:
    job = api.world.apply(manifests.job())
    manifest = pod("kept", reference(job))
    manifest["metadata"]["ownerReferences"][0]["controller"] = False
    api.world.apply(manifest)
    assert refusal(client, "kept") == "bare-pod"


def owned_job(api: FakeApi, version: str, kind: str, make: Any = manifests.job) -> None:
    job = make()
    job["metadata"]["ownerReferences"] = [
        {"apiVersion": version, "kind": kind, "name": "above", "uid": "u", "controller": True}
    ]
    made = api.world.apply(job, settle=False)
    api.world.apply(pod("one", reference(made)), settle=False)


@pytest.mark.parametrize(
    ("version", "kind", "make"),
    [
        ("kubeflow.org/v2beta1", "MPIJob", manifests.job),
        ("machinelearning.seldon.io/v1", "SeldonDeployment", manifests.deployment),
        ("serving.kserve.io/v1beta1", "InferenceService", manifests.deployment),
        ("example.com/v1", "Thing", manifests.job_set),
    ],
)
def test_job_of_an_unknown_controller_is_refused(
    api: FakeApi, client: KubernetesClient, version: str, kind: str, make: Any
) -> None:
    """That controller would undo the change, or lose its job."""
    owned_job(api, version, kind, make)
    with pytest.raises(Refused, match=f"{kind}.{version.partition('/')[0]} ml/above") as refused:
        resolve(client, "ml", "one")
    assert refused.value.reason.label == "unknown-controller"


def test_job_of_a_cron_job_is_restarted(api: FakeApi, client: KubernetesClient) -> None:
    owned_job(api, "batch/v1", "CronJob")
    assert str(resolve(client, "ml", "one").owner.ref) == "Job.batch ml/train"


def test_owners_in_a_ring_are_refused(api: FakeApi, client: KubernetesClient) -> None:
    one = api.world.apply(pod("a"))
    two = api.world.apply(pod("b", reference(one)))
    one["metadata"]["ownerReferences"] = [{**reference(two), "controller": True}]
    assert refusal(client, "a") == "too-many-owners"
    assert len([call for call in api.log if call.method == "GET"]) == 1 + MAX_OWNERS


def test_ray_cluster_without_a_ray_job_is_refused(api: FakeApi, client: KubernetesClient) -> None:
    api.world.store.create(of("ray.io/v1", "RayCluster"), "ml", {"metadata": {"name": "shared"}, "spec": {}})
    raw = api.world.get("ray.io/v1", "RayCluster", "shared")
    api.world.apply(pod("worker", reference(raw)))
    assert refusal(client, "worker") == "unknown-controller"
