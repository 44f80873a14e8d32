"""What a restart costs a Job: nothing by suspension, a failure by deletion."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpufrag.restarter.backend import Conflict, Job, Stage
from gpufrag.restarter.kubernetes.backend import KubernetesBackend
from gpufrag.restarter.kubernetes.objects import Owner
from restarter.contract.backend import Backend
from restarter.scene import pod_alert

IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def kubernetes(backend: Backend) -> KubernetesBackend:
    return KubernetesBackend(backend.client, (backend.namespace,), lambda: 0.0)


def find(backend: Backend, name: str) -> Job:
    return kubernetes(backend).find(pod_alert(backend.pods(name)[0]["metadata"]["name"], backend.namespace))


def carry_out(backend: Backend, job: Job, order: Callable[[Job], None]) -> None:
    """The Job controller writes into the same object, so a conflict is normal."""

    def attempt() -> bool:
        with suppress(Conflict):
            order(kubernetes(backend).read(job))
            return True
        return False

    backend.eventually(attempt)


def restart(backend: Backend, name: str) -> Owner:
    """Restart a Job as the worker does; return it once it runs again."""
    jobs, job = kubernetes(backend), find(backend, name)
    carry_out(backend, job, lambda fresh: jobs.stop(fresh, fresh.record))
    backend.eventually(lambda: jobs.state(jobs.read(job)).confirmed)
    carry_out(backend, job, lambda fresh: jobs.start(fresh, fresh.record))
    backend.eventually(lambda: jobs.state(jobs.read(job)).stage is Stage.RUNNING)
    backend.eventually(lambda: backend.running(name))
    owner: Owner = jobs.read(job).handle.owner
    return owner


def uids(backend: Backend, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in backend.pods(name)}


def conditions(backend: Backend, name: str) -> dict[str, str]:
    status: dict[str, Any] = backend.ask("GET", f"batch/v1 jobs/{name}").body["status"]
    return {one["type"]: one["status"] for one in status.get("conditions") or ()}


def test_restart_counts_no_failure(backend: Backend, name: str) -> None:
    before = backend.job(name)
    old = uids(backend, name)
    after = restart(backend, name)
    assert (after.status.get("failed", 0), after.status["ready"], after.finished) == (0, 2, False)
    assert after.status["startTime"] >= before["status"]["startTime"]
    assert not old & uids(backend, name)


def test_suspended_job_has_no_pods(backend: Backend, name: str) -> None:
    backend.job(name)
    jobs, job = kubernetes(backend), find(backend, name)
    carry_out(backend, job, lambda fresh: jobs.stop(fresh, fresh.record))
    backend.eventually(lambda: jobs.state(jobs.read(job)).confirmed)
    stopped = backend.eventually(lambda: settled(jobs.read(job).handle.owner))
    assert stopped.status.get("failed", 0) == 0
    assert "startTime" not in stopped.status


def settled(owner: Owner) -> Owner | None:
    """The status lags behind the pods."""
    return None if any(owner.status.get(key) for key in ("active", "terminating")) else owner


def test_deleted_pod_counts_as_failed(backend: Backend, name: str) -> None:
    backend.job(name)
    backend.ask("DELETE", f"v1 pods/{backend.pods(name)[0]['metadata']['name']}")
    backend.eventually(lambda: conditions(backend, name).get("Failed") == "True")
    owner = backend.ask("GET", f"batch/v1 jobs/{name}").body
    assert owner["status"]["failed"] >= 1


def test_ignored_eviction_counts_no_failure(backend: Backend, name: str) -> None:
    backend.job(name, podFailurePolicy={"rules": [IGNORE]})
    pod = backend.client.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    backend.client.evict(pod)
    backend.eventually(lambda: pod.uid not in uids(backend, name) and backend.running(name))
    assert backend.ask("GET", f"batch/v1 jobs/{name}").body["status"].get("failed", 0) == 0
