"""The controllers of the fake, as far as a restart depends on them, and a kubelet that runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from restarter.fake_api.store import POD, SERVED, Raw, Served, Store, controllers_of, of

TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "local/training:1"}]}}
INDEX = "batch.kubernetes.io/job-completion-index"
JOB = of("batch/v1", "Job")
JOB_SET = of("jobset.x-k8s.io/v1alpha2", "JobSet")
RAY_CLUSTER = of("ray.io/v1", "RayCluster")
COMMAND = of("bus.volcano.sh/v1alpha1", "Command")
REPLICA_SET = of("apps/v1", "ReplicaSet")
STATEFUL_SET = of("apps/v1", "StatefulSet")


def ready(pod: Raw) -> bool:
    return holds(pod, "Ready")


def deleting(raw: Raw) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def ended(pod: Raw) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def live(pods: list[Raw]) -> list[Raw]:
    """Return the pods that have not ended and are not being deleted."""
    return [pod for pod in pods if not ended(pod) and not deleting(pod)]


def holds(raw: Raw, condition: str) -> bool:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def set_condition(status: Raw, kind: str, value: bool) -> None:
    others = [one for one in status.get("conditions") or () if one["type"] != kind]
    status["conditions"] = [*others, {"type": kind, "status": str(value), "reason": "Fake", "message": "fake"}]


def status_of(raw: Raw) -> Raw:
    return {**(raw.get("status") or {})}


def make_child(store: Store, owner: Raw, served: Served, name: str, **body: Any) -> Raw:
    """Create an object that `owner` controls. A name that ends in a hyphen gets a suffix."""
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    named = {"generateName" if name.endswith("-") else "name": name, **body.pop("metadata", {})}
    named["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
    return store.create(served, meta["namespace"], {"metadata": named, **body})


def make_pod(
    store: Store, owner: Raw, name: str, labels: Raw, template: Raw = TEMPLATE, annotations: Raw | None = None
) -> Raw:
    meta = template.get("metadata") or {}
    both = {"labels": {**(meta.get("labels") or {}), **labels}, "annotations": annotations or {}}
    return make_child(store, owner, POD, name, metadata=both, spec=template["spec"], status={"phase": "Pending"})


def keep_pods(store: Store, owner: Raw, names: list[str], labels: Raw, template: Raw = TEMPLATE) -> list[Raw]:
    """Keep pods of these names; a deleted one is recreated once it is gone."""
    for pod in store.owned(owner, POD):
        if pod["metadata"]["name"] not in names:
            store.delete(pod, graceful=True)
    taken = {pod["metadata"]["name"] for pod in store.of_kind(POD, owner["metadata"]["namespace"])}
    for name in names:
        if name not in taken:
            make_pod(store, owner, name, labels, template)
    return store.owned(owner, POD)


class JobController:
    """Suspension costs nothing, and a deleted pod counts as failed. The status of the pods lags by one tick."""

    def __init__(self) -> None:
        self._counted: set[str] = set()
        """Pods that were counted, which the real one keeps in finalizers."""
        self._next: dict[str, Raw] = {}

    def __call__(self, store: Store, job: Raw) -> None:
        if holds(job, "Complete") or holds(job, "Failed"):
            return
        pods, spec, status = store.owned(job, POD), job["spec"], status_of(job)
        self._count(job, pods, status)
        if status.get("failed", 0) > spec.get("backoffLimit", 6):
            self._delete(store, pods)
            set_condition(status, "Failed", True)
        elif status.get("succeeded", 0) >= spec.get("completions", 1):
            set_condition(status, "Complete", True)
        elif spec.get("suspend"):
            self._delete(store, pods)
            status.pop("startTime", None)
            set_condition(status, "Suspended", True)
        else:
            self._run(store, job, pods, status)
        pods, uid = store.owned(job, POD), job["metadata"]["uid"]
        store.set_status(job, {**status, **self._next.get(uid, {})})
        stopping = [pod for pod in pods if deleting(pod) and not ended(pod)]
        self._next[uid] = {
            "active": len(live(pods)),
            "ready": sum(map(ready, live(pods))),
            "terminating": len(stopping),
        }

    def _count(self, job: Raw, pods: list[Raw], status: Raw) -> None:
        ignores = "Ignore" in [rule["action"] for rule in job["spec"].get("podFailurePolicy", {}).get("rules", ())]
        for pod in pods:
            if pod["metadata"]["uid"] in self._counted or not (ended(pod) or deleting(pod)):
                continue
            self._counted.add(pod["metadata"]["uid"])
            if not (ignores and holds(pod, "DisruptionTarget")):
                result = "succeeded" if pod["status"]["phase"] == "Succeeded" else "failed"
                status[result] = status.get(result, 0) + 1

    def _delete(self, store: Store, pods: list[Raw]) -> None:
        for pod in live(pods):
            self._counted.add(pod["metadata"]["uid"])
            store.delete(pod, graceful=True)

    def _run(self, store: Store, job: Raw, pods: list[Raw], status: Raw) -> None:
        name, uid, spec = job["metadata"]["name"], job["metadata"]["uid"], job["spec"]
        status.setdefault("startTime", store.now())
        set_condition(status, "Suspended", False)
        completed = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
        taken = {pod["metadata"]["annotations"].get(INDEX) for pod in [*live(pods), *completed]}
        count = spec.get("completions", 1)
        missing = min(spec.get("parallelism", 1), count - len(completed)) - len(live(pods))
        labels = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name, "job-name": name}
        for index in [str(index) for index in range(count) if str(index) not in taken][: max(0, missing)]:
            make_pod(store, job, f"{name}-{index}-", labels, spec["template"], {INDEX: index})


def train_job(store: Store, job: Raw) -> None:
    nodes = job["spec"]["trainer"]["numNodes"]
    spec = {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": TEMPLATE}
    replicated = [{"name": "node", "replicas": 1, "template": {"spec": spec}}]
    _mirror(store, job, JOB_SET, {job["metadata"]["name"]: {"replicatedJobs": replicated}})


def job_set(store: Store, owner: Raw) -> None:
    name, jobs = owner["metadata"]["name"], {}
    for one in owner["spec"]["replicatedJobs"]:
        spec = one["template"]["spec"]
        template = {**spec["template"], "metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": name}}}
        jobs |= {f"{name}-{one['name']}-{index}": {**spec, "template": template} for index in range(one["replicas"])}
    _mirror(store, owner, JOB, jobs)


def _mirror(store: Store, owner: Raw, child: Served, wanted: dict[str, Raw]) -> None:
    """Keep children of these names and specs, suspended as their owner is."""
    suspend = bool(owner["spec"].get("suspend"))
    existing = {raw["metadata"]["name"]: raw for raw in store.owned(owner, child)}
    for name, spec in wanted.items():
        if name not in existing:
            existing[name] = make_child(store, owner, child, name, spec={**spec, "suspend": suspend})
        elif existing[name]["spec"]["suspend"] != suspend:
            change = {"spec": {"suspend": suspend}}
            existing[name] = store.patch(child, owner["metadata"]["namespace"], name, change)
    status = status_of(owner)
    set_condition(status, "Suspended", suspend and all(holds(raw, "Suspended") for raw in existing.values()))
    store.set_status(owner, status)


def pytorch_job(store: Store, job: Raw) -> None:
    name, suspend = job["metadata"]["name"], bool(job["spec"]["runPolicy"].get("suspend"))
    roles = job["spec"]["pytorchReplicaSpecs"].items()
    names = [f"{name}-{role.lower()}-{index}" for role, one in roles for index in range(one["replicas"])]
    keep_pods(store, job, [] if suspend else names, {"training.kubeflow.org/job-name": name})
    status = status_of(job)
    set_condition(status, "Suspended", suspend)
    store.set_status(job, status)


def ray_job(store: Store, job: Raw) -> None:
    """Suspension deletes its cluster; resumption creates one of a new name."""
    clusters, status = store.owned(job, RAY_CLUSTER), status_of(job)
    if job["spec"].get("suspend"):
        for cluster in clusters:
            store.delete(cluster)
        left = store.of_kind(POD, selector=f"ray.io/cluster={status.get('rayClusterName')}")
        status["jobDeploymentStatus"] = "Suspending" if left else "Suspended"
    else:
        (cluster,) = clusters or [make_child(store, job, RAY_CLUSTER, f"{job['metadata']['name']}-", spec={})]
        name = status["rayClusterName"] = cluster["metadata"]["name"]
        workers = sum(one["replicas"] for one in job["spec"]["rayClusterSpec"]["workerGroupSpecs"])
        pods = keep_pods(store, cluster, [f"{name}-{index}" for index in range(1 + workers)], {"ray.io/cluster": name})
        status["jobDeploymentStatus"] = "Running" if all(map(ready, pods)) else "Initializing"
    store.set_status(job, status)


def volcano_job(store: Store, job: Raw) -> None:
    """A command is deleted as it is carried out, and uses one of the retries."""
    name, status = job["metadata"]["name"], {"version": 0, "retryCount": 0, **status_of(job)}
    for command in store.of_kind(COMMAND, job["metadata"]["namespace"]):
        if command["target"]["uid"] == job["metadata"]["uid"] and command["action"] == "RestartJob":
            store.delete(command)
            for pod in live(store.owned(job, POD)):
                store.delete(pod, graceful=True)
            status |= {"version": status["version"] + 1, "retryCount": status["retryCount"] + 1}
    names = [f"{name}-{one['name']}-{index}" for one in job["spec"]["tasks"] for index in range(one["replicas"])]
    pods = keep_pods(store, job, names, {"volcano.sh/job-name": name})
    if status["retryCount"] >= job["spec"]["maxRetry"]:
        phase = "Failed"
    elif any(map(deleting, pods)):
        phase = "Restarting"
    else:
        phase = "Running" if all(map(ready, pods)) else "Pending"
    store.set_status(job, {**status, "state": {"phase": phase}})


def deployment(store: Store, one: Raw) -> None:
    """A ReplicaSet for each template. Old pods end when all new ones are ready."""
    spec = one["spec"]
    newest = f"{one['metadata']['name']}-{_digest(spec['template'])}"
    sets = {raw["metadata"]["name"]: raw for raw in store.owned(one, REPLICA_SET)}
    if newest not in sets:
        copied = {key: spec[key] for key in ("replicas", "selector", "template")}
        sets[newest] = make_child(store, one, REPLICA_SET, newest, spec=copied)
    names = [f"{newest}-{index}" for index in range(spec["replicas"])]
    pods = keep_pods(store, sets[newest], names, spec["selector"]["matchLabels"], spec["template"])
    others = [raw for name, raw in sets.items() if name != newest]
    if all(map(ready, pods)):
        for old in others:
            keep_pods(store, old, [], {})
    everything = [*pods, *(pod for raw in others for pod in live(store.owned(raw, POD)))]
    _report(store, one, replicas=len(everything), updated=len(pods), running=sum(map(ready, everything)))


def stateful_set(store: Store, one: Raw) -> None:
    """Replaces one pod at a time, the last first."""
    spec, digest = one["spec"], _digest(one["spec"]["template"])
    labels = {**spec["selector"]["matchLabels"], "controller-revision-hash": digest}
    names = [f"{one['metadata']['name']}-{index}" for index in range(spec["replicas"])]
    pods = keep_pods(store, one, names, labels, spec["template"])
    old = [pod for pod in pods if pod["metadata"]["labels"]["controller-revision-hash"] != digest]
    if old and all(ready(pod) and not deleting(pod) for pod in pods):
        store.delete(old[-1], graceful=True)
    _report(store, one, replicas=len(pods), updated=len(pods) - len(old), running=sum(map(ready, live(pods))))


def leader_worker_set(store: Store, one: Raw) -> None:
    """Leaders are owned by a StatefulSet of the LeaderWorkerSet, workers by one of their leader."""
    name, template = one["metadata"]["name"], one["spec"]["leaderWorkerTemplate"]
    labels = {"leaderworkerset.sigs.k8s.io/name": name}
    leaders = store.owned(_child_set(store, one, name, one["spec"]["replicas"], labels, template), POD)
    groups = []
    for leader in leaders:
        workers = []
        if not deleting(leader):
            made = _child_set(store, leader, leader["metadata"]["name"], template["size"] - 1, labels, template)
            workers = store.owned(made, POD)
        groups.append([leader, *workers])
    if template.get("restartPolicy") != "None":
        for pod in [pod for group in groups if any(map(deleting, group)) for pod in live(group)]:
            store.delete(pod, graceful=True)
    running = [
        group for group in groups if len(group) == template["size"] and all(map(ready, group)) and live(group) == group
    ]
    _report(store, one, replicas=len(groups), updated=len(groups), running=len(running))


def _child_set(store: Store, owner: Raw, name: str, replicas: int, labels: Raw, template: Raw) -> Raw:
    worker = template["workerTemplate"]
    marked = {**worker, "metadata": {**(worker.get("metadata") or {}), "labels": {**labels, "set": name}}}
    for existing in store.owned(owner, STATEFUL_SET):
        if existing["spec"]["template"] == marked:
            return existing
        return store.patch(STATEFUL_SET, owner["metadata"]["namespace"], name, {"spec": {"template": marked}})
    spec = {"serviceName": name, "replicas": replicas, "selector": {"matchLabels": {"set": name}}, "template": marked}
    return make_child(store, owner, STATEFUL_SET, name, spec=spec)


def workflow(store: Store, one: Raw) -> None:
    """One pod; each attempt has a new name."""
    name = one["metadata"]["name"]
    names = [pod["metadata"]["name"] for pod in live(store.owned(one, POD))] or [f"{name}-{store.ticks}"]
    keep_pods(store, one, names, {"workflows.argoproj.io/workflow": name})
    store.set_status(one, {"phase": "Running"})


def _report(store: Store, one: Raw, replicas: int, updated: int, running: int) -> None:
    status = {"observedGeneration": one["metadata"]["generation"], "replicas": replicas}
    store.set_status(one, {**status, "updatedReplicas": updated, "readyReplicas": running})


def _digest(template: Raw) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


Controller = Callable[[Store, Raw], None]


def controllers() -> dict[Served, Controller]:
    """Return the controllers of a new cluster, in the order in which they act."""
    return {
        of("trainer.kubeflow.org/v1alpha1", "TrainJob"): train_job,
        JOB_SET: job_set,
        JOB: JobController(),
        of("kubeflow.org/v1", "PyTorchJob"): pytorch_job,
        of("ray.io/v1", "RayJob"): ray_job,
        of("batch.volcano.sh/v1alpha1", "Job"): volcano_job,
        of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): leader_worker_set,
        of("apps/v1", "Deployment"): deployment,
        STATEFUL_SET: stateful_set,
        of("argoproj.io/v1alpha1", "Workflow"): workflow,
    }


def run_kubelet(store: Store, grace_ticks: int) -> None:
    """Start pending pods, and remove deleted ones after their grace period."""
    for pod in store.of_kind(POD):
        if deleting(pod):
            if pod["metadata"]["deletionTimestamp"] <= store.now(grace_ticks):
                store.delete(pod)
        elif pod["status"]["phase"] == "Pending":
            status = {"phase": "Running", "podIP": f"10.0.0.{store.ticks % 250 + 1}"}
            set_condition(status, "Ready", True)
            store.set_status(pod, status)


def collect_garbage(store: Store) -> None:
    """Delete objects whose owner is gone. Owners of kinds that are not served always exist."""
    alive = {raw["metadata"]["uid"] for raw in store.objects.values()}
    served = {one[:2] for one in SERVED}
    for raw in list(store.objects.values()):
        references = raw["metadata"].get("ownerReferences") or ()
        known = all((one["apiVersion"], one["kind"]) in served for one in references)
        if known and set(controllers_of(raw)) - alive:
            store.delete(raw, graceful=raw["kind"] == "Pod")
