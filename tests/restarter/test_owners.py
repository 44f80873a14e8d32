"""Who answers for a pod: by references and uids, whatever the labels say."""

from __future__ import annotations

from typing import Any

import pytest

from gpufrag.restarter.errors import Refused
from gpufrag.restarter.kubernetes.client import KubernetesCluster
from gpufrag.restarter.kubernetes.owners import MAX_HOPS, resolve
from restarter.fake_api import manifests
from restarter.fake_api.served import of
from restarter.fake_api.server import FakeApi, fake_api
from restarter.restarting import scene

CHAINS = {
    "job": ["Job.batch"],
    "job_set": ["Job.batch", "JobSet.jobset.x-k8s.io"],
    "train_job": ["Job.batch", "JobSet.jobset.x-k8s.io", "TrainJob.trainer.kubeflow.org"],
    "pytorch_job": ["PyTorchJob.kubeflow.org"],
    "volcano_job": ["Job.batch.volcano.sh"],
    "ray_job": ["RayCluster.ray.io", "RayJob.ray.io"],
    "leader_worker_set": ["StatefulSet.apps", "Pod", "StatefulSet.apps", "LeaderWorkerSet.leaderworkerset.x-k8s.io"],
    "workflow": ["Workflow.argoproj.io"],
    "deployment": ["ReplicaSet.apps", "Deployment.apps"],
    "stateful_set": ["StatefulSet.apps"],
}


@pytest.fixture
def api() -> Any:
    with fake_api() as one:
        yield one


@pytest.fixture
def cluster(api: FakeApi) -> Any:
    one = KubernetesCluster(api.config(), trust_env=False)
    yield one
    one.close()


def pod(name: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    manifest = manifests.bare_pod(name)
    references = {"ownerReferences": [{**owner, "controller": True}]} if owner else {}
    return {**manifest, "metadata": {**manifest["metadata"], **references}}


def reference(raw: dict[str, Any], **changed: str) -> dict[str, Any]:
    kind = {"apiVersion": raw["apiVersion"], "kind": raw["kind"]}
    return {**kind, "name": raw["metadata"]["name"], "uid": raw["metadata"]["uid"], **changed}


def refusal(cluster: KubernetesCluster, name: str, uid: str | None = None) -> str:
    with pytest.raises(Refused) as refused:
        resolve(cluster, "ml", name, uid)
    assert len(str(refused.value).splitlines()) == 1
    return refused.value.reason


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_the_topmost_owner_is_found(make: Any) -> None:
    with scene(make()) as it:
        assert [str(ref.group_kind) for ref in it.resolved.chain] == CHAINS[make.__name__]
        assert it.resolved.owner.ref == it.resolved.chain[-1]


def test_a_later_pod_of_that_name_is_another(api: FakeApi, cluster: KubernetesCluster) -> None:
    uid = api.world.apply(pod("one"))["metadata"]["uid"]
    assert refusal(cluster, "one", f"{uid}0") == "pod-replaced"
    assert refusal(cluster, "one", uid) == "bare-pod"
    assert refusal(cluster, "two") == "pod-gone"


@pytest.mark.parametrize("uid", ["11111111-0000-4000-8000-000000000000", ""])
def test_an_owner_is_who_its_uid_says(api: FakeApi, cluster: KubernetesCluster, uid: str) -> None:
    """A name alone is given anew; what then bears it has done nothing."""
    job = api.world.apply(manifests.job())
    api.world.apply(pod("forged", reference(job, uid=uid)), settle=False)
    assert refusal(cluster, "forged") == "owner-gone"


def test_labels_prove_nothing(api: FakeApi, cluster: KubernetesCluster) -> None:
    job = api.world.apply(manifests.job())
    manifest = pod("forged")
    manifest["metadata"]["labels"] = {"job-name": "train", "controller-uid": job["metadata"]["uid"]}
    api.world.apply(manifest)
    assert refusal(cluster, "forged") == "bare-pod"


def test_an_owner_that_does_not_control_counts_for_nothing(api: FakeApi, cluster: KubernetesCluster) -> None:
    job = api.world.apply(manifests.job())
    manifest = pod("kept", reference(job))
    manifest["metadata"]["ownerReferences"][0]["controller"] = False
    api.world.apply(manifest)
    assert refusal(cluster, "kept") == "bare-pod"


def test_a_kind_that_nobody_knows_is_named(api: FakeApi, cluster: KubernetesCluster) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "Thing", "name": "it", "uid": "u"}
    api.world.apply(pod("odd", owner), settle=False)
    told = r"Thing.example.com ml/it, which is not restarted; known are .*Job.batch"
    with pytest.raises(Refused, match=told) as refused:
        resolve(cluster, "ml", "odd")
    assert refused.value.reason == "unknown-kind"


def test_above_an_unknown_owner_nothing_is_looked_for(api: FakeApi, cluster: KubernetesCluster) -> None:
    """A Job of a CronJob, or of any controller that we do not know, is a Job."""
    job = manifests.job()
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u", "controller": True}
    job["metadata"]["ownerReferences"] = [owner]
    made = api.world.apply(job, settle=False)
    api.world.apply(pod("one", reference(made)), settle=False)
    assert str(resolve(cluster, "ml", "one").owner.ref) == "Job.batch ml/train"


def test_owners_in_a_ring_come_to_an_end(api: FakeApi, cluster: KubernetesCluster) -> None:
    one = api.world.apply(pod("a"))
    two = api.world.apply(pod("b", reference(one)))
    one["metadata"]["ownerReferences"] = [{**reference(two), "controller": True}]
    assert refusal(cluster, "a") == "chain-too-long"
    assert len([call for call in api.log if call.method == "GET"]) == 1 + MAX_HOPS


def test_a_ray_cluster_without_a_ray_job_is_refused(api: FakeApi, cluster: KubernetesCluster) -> None:
    api.world.store.create(of("ray.io/v1", "RayCluster"), "ml", {"metadata": {"name": "shared"}, "spec": {}})
    raw = api.world.get("ray.io/v1", "RayCluster", "shared")
    api.world.apply(pod("worker", reference(raw)))
    assert refusal(cluster, "worker") == "unknown-kind"
