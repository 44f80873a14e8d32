"""One small job of each kind, which has opted in."""

from __future__ import annotations

from typing import Any

from restarter.fake_api.controllers import TEMPLATE

NAME = "train"
NAMESPACE = "ml"


def meta(name: str = NAME, **annotations: str) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "annotations": {"gpufrag.dev/restart": "true", **annotations}}


def job(name: str = NAME, **spec: Any) -> dict[str, Any]:
    """Two ranks, and no failure allowed."""
    whole = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": TEMPLATE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name), "spec": {**whole, **spec}}


def job_set(name: str = NAME) -> dict[str, Any]:
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": TEMPLATE}
    jobs = [{"name": "workers", "replicas": 1, "template": {"spec": spec}}]
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta(name)}
    return {**body, "spec": {"replicatedJobs": jobs}}


def train_job(name: str = NAME) -> dict[str, Any]:
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2}}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": meta(name), "spec": spec}


def pytorch_job(name: str = NAME) -> dict[str, Any]:
    replicas = {kind: {"replicas": 1, "template": TEMPLATE} for kind in ("Master", "Worker")}
    spec = {"runPolicy": {"backoffLimit": 0}, "pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta(name), "spec": spec}


def volcano_job(name: str = NAME) -> dict[str, Any]:
    tasks = [{"name": "worker", "replicas": 2, "template": TEMPLATE}]
    spec = {"minAvailable": 2, "maxRetry": 3, "tasks": tasks}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta(name), "spec": spec}


def ray_job(name: str = NAME) -> dict[str, Any]:
    cluster = {"workerGroupSpecs": [{"groupName": "gpu", "replicas": 1}]}
    spec = {"entrypoint": "python train.py", "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": meta(name), "spec": spec}


def leader_worker_set(name: str = NAME, **template: Any) -> dict[str, Any]:
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": SERVING, **template}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": meta(name),
        "spec": spec,
    }


def workflow(name: str = NAME, **retry: str) -> dict[str, Any]:
    step = {
        "name": "fit",
        "container": {"image": "local/training:1"},
        "retryStrategy": retry or {"retryPolicy": "Always"},
    }
    spec = {"entrypoint": "fit", "templates": [step]}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": meta(name), "spec": spec}


SERVING = {"spec": {"containers": [{"name": "main", "image": "local/server:1"}]}}


def deployment(name: str = NAME, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, **SERVING}
    whole = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(name), "spec": {**whole, **spec}}


def stateful_set(name: str = NAME, **spec: Any) -> dict[str, Any]:
    whole = {**deployment(name)["spec"], "serviceName": name}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta(name), "spec": {**whole, **spec}}


def bare_pod(name: str = NAME) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name), **TEMPLATE, "status": {"phase": "Running"}}


ALL = (
    job,
    job_set,
    train_job,
    pytorch_job,
    volcano_job,
    ray_job,
    leader_worker_set,
    workflow,
    deployment,
    stateful_set,
)
