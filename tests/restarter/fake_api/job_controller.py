"""The Job controller as it was seen to behave: suspension costs nothing, a deleted pod counts as failed."""

from __future__ import annotations

from typing import Any

from restarter.fake_api.pods import (
    condition,
    deleting,
    ended,
    live,
    make_pod,
    pods_of,
    ready,
    set_condition,
    set_status,
)
from restarter.fake_api.served import of
from restarter.fake_api.store import Store

JOB = of("batch/v1", "Job")
INDEX = "batch.kubernetes.io/job-completion-index"


class JobController:
    """Keeps which pods it has counted, as the real one does with finalizers. Its status lags by one tick."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counted: set[str] = set()
        self._pods_status: dict[str, dict[str, int]] = {}
        """By job: what its status will show at the next tick."""

    def reconcile(self) -> None:
        for job in self._store.of_kind(JOB):
            if not any(condition(job, end) == "True" for end in ("Complete", "Failed")):
                self._sync(job)

    def _sync(self, job: dict[str, Any]) -> None:
        pods, spec = pods_of(self._store, job), job["spec"]
        status = {**(job.get("status") or {})}
        self._count(job, pods, status)
        if status.get("failed", 0) > spec.get("backoffLimit", 6):
            self._fail(pods, status)
        elif status.get("succeeded", 0) >= spec.get("completions", 1):
            set_condition(status, "Complete", True, "CompletionsReached")
            status["completionTime"] = self._store.now()
        elif spec.get("suspend"):
            self._suspend(pods, status)
        else:
            self._run(job, pods, status)
        pods = pods_of(self._store, job)
        uid, shown = job["metadata"]["uid"], {
            "active": len(live(pods)),
            "ready": len([pod for pod in live(pods) if ready(pod)]),
            "terminating": len([pod for pod in pods if deleting(pod) and not ended(pod)]),
        }  # fmt: skip
        set_status(self._store, job, {**status, **self._pods_status.get(uid, {})})
        self._pods_status[uid] = shown

    def _count(self, job: dict[str, Any], pods: list[dict[str, Any]], status: dict[str, Any]) -> None:
        """Count each pod once; a running pod with a deletion timestamp counts as failed."""
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid in self._counted or not (ended(pod) or deleting(pod)):
                continue
            self._counted.add(uid)
            if pod["status"]["phase"] == "Succeeded":
                status["succeeded"] = status.get("succeeded", 0) + 1
            elif not _ignored(job, pod):
                status["failed"] = status.get("failed", 0) + 1

    def _suspend(self, pods: list[dict[str, Any]], status: dict[str, Any]) -> None:
        for pod in live(pods):
            self._counted.add(pod["metadata"]["uid"])
            self._store.delete(pod, grace_ticks=30)
        status.pop("startTime", None)
        set_condition(status, "Suspended", True, "JobSuspended")

    def _run(self, job: dict[str, Any], pods: list[dict[str, Any]], status: dict[str, Any]) -> None:
        status.setdefault("startTime", self._store.now())
        if condition({"status": status}, "Suspended") == "True":
            set_condition(status, "Suspended", False, "JobResumed")
        held = live(pods)
        if job["spec"].get("podReplacementPolicy") == "Failed" or "podFailurePolicy" in job["spec"]:
            held = [pod for pod in pods if not ended(pod)]
        left = job["spec"].get("completions", 1) - status.get("succeeded", 0)
        taken = {pod["metadata"]["annotations"].get(INDEX) for pod in held} | _done(pods)
        for index in self._missing(min(job["spec"].get("parallelism", 1), left) - len(held), taken):
            self._make(job, index)

    def _missing(self, count: int, taken: set[str | None]) -> list[int]:
        free = [index for index in range(len(taken) + max(0, count)) if str(index) not in taken]
        return free[: max(0, count)]

    def _make(self, job: dict[str, Any], index: int) -> None:
        meta = job["metadata"]
        labels = {
            "batch.kubernetes.io/controller-uid": meta["uid"],
            "batch.kubernetes.io/job-name": meta["name"],
            "job-name": meta["name"],
        }
        name = {"generateName": f"{meta['name']}-{index}-"}
        make_pod(self._store, job, labels, job["spec"]["template"], {INDEX: str(index)}, **name)

    def _fail(self, pods: list[dict[str, Any]], status: dict[str, Any]) -> None:
        for pod in live(pods):
            self._store.delete(pod, grace_ticks=30)
        set_condition(status, "FailureTarget", True, "BackoffLimitExceeded")
        set_condition(status, "Failed", True, "BackoffLimitExceeded")


def _done(pods: list[dict[str, Any]]) -> set[str | None]:
    return {pod["metadata"]["annotations"].get(INDEX) for pod in pods if pod["status"]["phase"] == "Succeeded"}


def _ignored(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Whether a rule of its podFailurePolicy ignores disrupted pods."""
    rules = job["spec"].get("podFailurePolicy", {}).get("rules") or ()
    disrupted = condition(pod, "DisruptionTarget") == "True"
    return disrupted and any(
        rule["action"] == "Ignore"
        and any(one["type"] == "DisruptionTarget" for one in rule.get("onPodConditions") or ())
        for rule in rules
    )
