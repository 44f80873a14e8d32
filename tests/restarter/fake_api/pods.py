"""Functions for the controllers of the fake, and a kubelet that runs nothing."""

from __future__ import annotations

from typing import Any

from restarter.fake_api.served import ALL, of
from restarter.fake_api.store import Store, controllers_of

POD = of("v1", "Pod")
SERVED = {(one.group_version, one.kind) for one in ALL}
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "local/training:1"}]}}


def reference_to(owner: dict[str, Any]) -> dict[str, Any]:
    meta = owner["metadata"]
    named = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def make_pod(
    store: Store,
    owner: dict[str, Any],
    labels: dict[str, str],
    template: dict[str, Any] = TEMPLATE,
    annotations: dict[str, str] | None = None,
    **name: str,
) -> dict[str, Any]:
    """`name`: name="…" or generateName="…"."""
    meta = template.get("metadata") or {}
    body = {
        "metadata": {
            **name,
            "labels": {**(meta.get("labels") or {}), **labels},
            "annotations": {**(meta.get("annotations") or {}), **(annotations or {})},
            "ownerReferences": [reference_to(owner)],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    return store.create(POD, owner["metadata"]["namespace"], body)


def pods_of(store: Store, owner: dict[str, Any]) -> list[dict[str, Any]]:
    return store.owned(owner, POD)


def live(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods that have not ended and are not being deleted."""
    return [pod for pod in pods if not ended(pod) and not deleting(pod)]


def deleting(raw: dict[str, Any]) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def ended(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def ready(pod: dict[str, Any]) -> bool:
    return condition(pod, "Ready") == "True"


def condition(raw: dict[str, Any], kind: str) -> str | None:
    found = [one["status"] for one in (raw.get("status") or {}).get("conditions") or () if one["type"] == kind]
    return found[0] if found else None


def set_condition(status: dict[str, Any], kind: str, value: bool, reason: str = "Fake") -> None:
    others = [one for one in status.get("conditions") or () if one["type"] != kind]
    status["conditions"] = [*others, {"type": kind, "status": str(value), "reason": reason, "message": reason}]


def set_status(store: Store, raw: dict[str, Any], status: dict[str, Any]) -> None:
    if raw.get("status") != status:
        raw["status"] = status
        store.touch(raw)


def run_kubelet(store: Store, grace_ticks: int) -> None:
    """Start pending pods, and remove deleted ones after their grace period."""
    for pod in store.of_kind(POD):
        if deleting(pod):
            _let_stop(store, pod, grace_ticks)
        elif pod["status"]["phase"] == "Pending":
            status = {"phase": "Running", "podIP": f"10.0.0.{store.ticks % 250 + 1}"}
            set_condition(status, "Ready", True)
            set_status(store, pod, status)


def _let_stop(store: Store, pod: dict[str, Any], grace_ticks: int) -> None:
    annotations = pod["metadata"].setdefault("annotations", {})
    since = int(annotations.setdefault("fake/stopping-since", str(store.ticks)))
    if store.ticks - since >= grace_ticks:
        store.delete(pod)


def collect_garbage(store: Store, grace_ticks: int) -> None:
    """Delete objects whose owner is gone. Owners of kinds that are not served always exist."""
    alive = {raw["metadata"]["uid"] for raw in store.objects.values()}
    for raw in list(store.objects.values()):
        if any(uid not in alive for uid in controllers_of(raw, SERVED)) and not deleting(raw):
            store.delete(raw, grace_ticks if raw["kind"] == "Pod" else 0)
