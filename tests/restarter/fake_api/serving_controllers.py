"""Controllers of serving workloads and workflows, as far as a restart depends on them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from restarter.fake_api.pods import (
    TEMPLATE,
    deleting,
    live,
    pods_of,
    ready,
    reference_to,
    set_status,
)
from restarter.fake_api.served import of
from restarter.fake_api.store import Store
from restarter.fake_api.training_controllers import STOP_TICKS, keep_pods

DEPLOYMENT = of("apps/v1", "Deployment")
REPLICA_SET = of("apps/v1", "ReplicaSet")
Raw = dict[str, Any]
STATEFUL_SET = of("apps/v1", "StatefulSet")
LEADER_WORKER_SET = of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
WORKFLOW = of("argoproj.io/v1alpha1", "Workflow")


def reconcile(store: Store) -> None:
    for one in store.of_kind(LEADER_WORKER_SET):
        _leader_worker_set(store, one)
    for one in store.of_kind(DEPLOYMENT):
        _deployment(store, one)
    for one in store.of_kind(STATEFUL_SET):
        _stateful_set(store, one)
    for one in store.of_kind(WORKFLOW):
        _workflow(store, one)


def _deployment(store: Store, one: dict[str, Any]) -> None:
    """A ReplicaSet for each template. Old pods end when all new ones are ready."""
    name, spec = one["metadata"]["name"], one["spec"]
    newest = f"{name}-{_digest(spec['template'])}"
    sets = {raw["metadata"]["name"]: raw for raw in store.owned(one, REPLICA_SET)}
    if newest not in sets:
        meta = {"name": newest, "ownerReferences": [reference_to(one)]}
        body = {"metadata": meta, "spec": {key: spec[key] for key in ("replicas", "selector", "template")}}
        sets[newest] = store.create(REPLICA_SET, one["metadata"]["namespace"], body)
    names = [f"{newest}-{index}" for index in range(spec["replicas"])]
    pods = keep_pods(store, sets[newest], names, spec["selector"]["matchLabels"], spec["template"])
    settled = all(map(ready, pods))
    for old in [raw for key, raw in sets.items() if key != newest and settled]:
        keep_pods(store, old, [], {})
    others = [pod for key, raw in sets.items() if key != newest for pod in live(pods_of(store, raw))]
    _report(store, one, replicas=len(pods) + len(others), updated=len(pods), ready_=sum(map(ready, [*pods, *others])))


def _stateful_set(store: Store, one: dict[str, Any]) -> None:
    """Replaces one pod at a time, the last first."""
    digest = _digest(one["spec"]["template"])
    names = [f"{one['metadata']['name']}-{index}" for index in range(one["spec"]["replicas"])]
    labels = {**one["spec"]["selector"]["matchLabels"], "controller-revision-hash": digest}
    pods = keep_pods(store, one, names, labels, one["spec"]["template"])
    old = [pod for pod in pods if pod["metadata"]["labels"]["controller-revision-hash"] != digest]
    if old and all(ready(pod) and not deleting(pod) for pod in pods):
        store.delete(old[-1], STOP_TICKS)
    _report(store, one, replicas=len(pods), updated=len(pods) - len(old), ready_=sum(map(ready, live(pods))))


def _leader_worker_set(store: Store, one: dict[str, Any]) -> None:
    """Leaders are owned by a StatefulSet of the LeaderWorkerSet, workers by one of their leader."""
    name, template = one["metadata"]["name"], one["spec"]["leaderWorkerTemplate"]
    label = {"leaderworkerset.sigs.k8s.io/name": name}
    leaders = pods_of(store, _child_set(store, one, name, one["spec"]["replicas"], label, template["workerTemplate"]))
    groups = [_group(store, leader, template, label) for leader in leaders]
    if template.get("restartPolicy") != "None":
        for pod in [pod for group in groups if any(map(deleting, group)) for pod in live(group)]:
            store.delete(pod, STOP_TICKS)
    whole = [group for group in groups if len(group) == template["size"] and all(map(ready, live(group)))]
    settled = [group for group in whole if not any(map(deleting, group))]
    _report(store, one, replicas=len(groups), updated=len(groups), ready_=len(settled))


def _group(
    store: Store, leader: dict[str, Any], template: dict[str, Any], label: dict[str, str]
) -> list[dict[str, Any]]:
    if deleting(leader):
        return [leader]
    name = leader["metadata"]["name"]
    workers = _child_set(store, leader, name, template["size"] - 1, label, template["workerTemplate"])
    return [leader, *pods_of(store, workers)]


def _child_set(
    store: Store, owner: dict[str, Any], name: str, replicas: int, label: dict[str, str], template: dict[str, Any]
) -> dict[str, Any]:
    meta = template.get("metadata") or {}
    marked = {**template, "metadata": {**meta, "labels": {**label, "set": name}}}
    for existing in store.owned(owner, STATEFUL_SET):
        if existing["spec"]["template"] == marked:
            return existing
        return store.patch(STATEFUL_SET, owner["metadata"]["namespace"], name, {"spec": {"template": marked}})
    spec = {"serviceName": name, "replicas": replicas, "selector": {"matchLabels": {"set": name}}, "template": marked}
    meta = {"name": name, "ownerReferences": [reference_to(owner)]}
    return store.create(STATEFUL_SET, owner["metadata"]["namespace"], {"metadata": meta, "spec": spec})


def _workflow(store: Store, one: dict[str, Any]) -> None:
    """A pod for each template; each attempt has a new name."""
    name = one["metadata"]["name"]
    names = [pod["metadata"]["name"] for pod in live(pods_of(store, one))] or [f"{name}-{store.ticks}"]
    keep_pods(store, one, names, {"workflows.argoproj.io/workflow": name}, TEMPLATE)
    set_status(store, one, {"phase": "Running"})


def _report(store: Store, one: dict[str, Any], replicas: int, updated: int, ready_: int) -> None:
    status = {"observedGeneration": one["metadata"]["generation"], "replicas": replicas}
    set_status(store, one, {**status, "updatedReplicas": updated, "readyReplicas": ready_})


def _digest(template: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
