"""Controllers of training jobs, as far as a restart depends on them."""

from __future__ import annotations

from typing import Any

from restarter.fake_api.job_controller import JOB
from restarter.fake_api.pods import (
    POD,
    TEMPLATE,
    condition,
    deleting,
    live,
    make_pod,
    pods_of,
    ready,
    reference_to,
    set_condition,
    set_status,
)
from restarter.fake_api.served import Served, of
from restarter.fake_api.store import Store

JOB_SET = of("jobset.x-k8s.io/v1alpha2", "JobSet")
TRAIN_JOB = of("trainer.kubeflow.org/v1alpha1", "TrainJob")
PYTORCH_JOB = of("kubeflow.org/v1", "PyTorchJob")
RAY_JOB = of("ray.io/v1", "RayJob")
RAY_CLUSTER = of("ray.io/v1", "RayCluster")
VOLCANO_JOB = of("batch.volcano.sh/v1alpha1", "Job")
COMMAND = of("bus.volcano.sh/v1alpha1", "Command")
STOP_TICKS = 30


def reconcile(store: Store) -> None:
    for job in store.of_kind(TRAIN_JOB):
        _mirror(store, job, JOB_SET, [(job["metadata"]["name"], _job_set_spec(job))])
    for job_set in store.of_kind(JOB_SET):
        _mirror(store, job_set, JOB, list(_child_jobs(job_set)))
    for job in store.of_kind(PYTORCH_JOB):
        _pytorch(store, job)
    for job in store.of_kind(RAY_JOB):
        _ray(store, job)
    for job in store.of_kind(VOLCANO_JOB):
        _volcano(store, job)


def _mirror(store: Store, owner: dict[str, Any], child: Served, wanted: list[tuple[str, dict[str, Any]]]) -> None:
    """Keeps children of these names and specs, suspended as their owner is."""
    suspend = bool(owner["spec"].get("suspend"))
    existing = {raw["metadata"]["name"]: raw for raw in store.owned(owner, child)}
    for name, spec in wanted:
        if name not in existing:
            meta = {"name": name, "ownerReferences": [reference_to(owner)]}
            body = {"metadata": meta, "spec": {**spec, "suspend": suspend}}
            existing[name] = store.create(child, owner["metadata"]["namespace"], body)
        elif bool(existing[name]["spec"].get("suspend")) != suspend:
            change = {"spec": {"suspend": suspend}}
            existing[name] = store.patch(child, owner["metadata"]["namespace"], name, change)
    status = {**(owner.get("status") or {})}
    followed = all(condition(raw, "Suspended") == "True" for raw in existing.values())
    set_condition(status, "Suspended", suspend and followed)
    set_status(store, owner, status)


def _child_jobs(job_set: dict[str, Any]) -> Any:
    label = {"jobset.sigs.k8s.io/jobset-name": job_set["metadata"]["name"]}
    for one in job_set["spec"]["replicatedJobs"]:
        for index in range(one.get("replicas", 1)):
            spec = one["template"]["spec"]
            template = {**spec["template"], "metadata": {"labels": label}}
            yield f"{job_set['metadata']['name']}-{one['name']}-{index}", {**spec, "template": template}


def _job_set_spec(job: dict[str, Any]) -> dict[str, Any]:
    nodes = job["spec"]["trainer"]["numNodes"]
    spec = {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": TEMPLATE}
    return {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}]}


def _pytorch(store: Store, job: dict[str, Any]) -> None:
    label = {"training.kubeflow.org/job-name": job["metadata"]["name"]}
    suspend = bool(job["spec"].get("runPolicy", {}).get("suspend"))
    names = [
        f"{job['metadata']['name']}-{kind.lower()}-{index}"
        for kind, one in job["spec"]["pytorchReplicaSpecs"].items()
        for index in range(one.get("replicas", 1))
    ]
    keep_pods(store, job, [] if suspend else names, label)
    status = {**(job.get("status") or {})}
    set_condition(status, "Suspended", suspend)
    set_condition(status, "Running", not suspend and all(map(ready, pods_of(store, job))))
    set_status(store, job, status)


def _ray(store: Store, job: dict[str, Any]) -> None:
    """Suspension deletes its cluster; resumption creates one of a new name."""
    clusters = store.owned(job, RAY_CLUSTER)
    status = {**(job.get("status") or {})}
    of_cluster = [pod["metadata"]["labels"].get("ray.io/cluster") for pod in store.of_kind(POD)]
    if job["spec"].get("suspend"):
        for cluster in clusters:
            store.delete(cluster)
        status["jobDeploymentStatus"] = "Suspending" if status.get("rayClusterName") in of_cluster else "Suspended"
    else:
        cluster = clusters[0] if clusters else _ray_cluster(store, job)
        name = status["rayClusterName"] = cluster["metadata"]["name"]
        workers = sum(one.get("replicas", 0) for one in job["spec"]["rayClusterSpec"]["workerGroupSpecs"])
        keep_pods(store, cluster, [f"{name}-{index}" for index in range(1 + workers)], {"ray.io/cluster": name})
        status["jobDeploymentStatus"] = "Running" if all(map(ready, pods_of(store, cluster))) else "Initializing"
    set_status(store, job, status)


def _ray_cluster(store: Store, job: dict[str, Any]) -> dict[str, Any]:
    meta = {"generateName": f"{job['metadata']['name']}-", "ownerReferences": [reference_to(job)]}
    return store.create(RAY_CLUSTER, job["metadata"]["namespace"], {"metadata": meta, "spec": {}})


def _volcano(store: Store, job: dict[str, Any]) -> None:
    status = {"version": 0, "retryCount": 0, **(job.get("status") or {})}
    for command in store.of_kind(COMMAND, job["metadata"]["namespace"]):
        if command["target"]["uid"] == job["metadata"]["uid"] and command["action"] == "RestartJob":
            store.delete(command)
            for pod in live(pods_of(store, job)):
                store.delete(pod, STOP_TICKS)
            status["version"] += 1
            status["retryCount"] += 1
    name = job["metadata"]["name"]
    names = [f"{name}-{one['name']}-{index}" for one in job["spec"]["tasks"] for index in range(one["replicas"])]
    pods = keep_pods(store, job, names, {"volcano.sh/job-name": name})
    if status["retryCount"] >= job["spec"].get("maxRetry", 3):
        status["state"] = {"phase": "Failed"}
    else:
        stopping = any(map(deleting, pods))
        status["state"] = {"phase": "Restarting" if stopping else "Running" if all(map(ready, pods)) else "Pending"}
    set_status(store, job, status)


def keep_pods(
    store: Store, owner: dict[str, Any], names: list[str], labels: dict[str, str], template: dict[str, Any] = TEMPLATE
) -> list[dict[str, Any]]:
    """Keep pods of these names; a deleted one is recreated once it is gone."""
    pods = {pod["metadata"]["name"]: pod for pod in pods_of(store, owner)}
    for name, pod in pods.items():
        if name not in names and not deleting(pod):
            store.delete(pod, STOP_TICKS)
    taken = {pod["metadata"]["name"] for pod in store.of_kind(POD, owner["metadata"]["namespace"])}
    for name in names:
        if name not in taken:
            make_pod(store, owner, labels, template, name=name)
    return pods_of(store, owner)
