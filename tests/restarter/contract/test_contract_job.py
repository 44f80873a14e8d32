"""How a Job takes a restart: the one way that costs it nothing, and the ways that do."""

from __future__ import annotations

from typing import Any

from gpufrag.restarter.kubernetes.cluster import PHASE, Owner
from gpufrag.restarter.kubernetes.owners import resolve
from gpufrag.restarter.kubernetes.steps import AwaitStopped
from gpufrag.restarter.kubernetes.targets import TARGETS
from restarter.contract.backend import Backend

IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def restart(backend: Backend, name: str) -> Owner:
    """As the worker does it; the Job as it then is."""
    found = resolve(backend.cluster, backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    target, owner = TARGETS[found.owner.group_kind], found.owner
    for step in target.plan(owner, found.pod):
        if isinstance(step, AwaitStopped):
            backend.eventually(lambda: target.stopped(backend.cluster, backend.cluster.get_owner(found.owner.ref)))
        else:
            step.run(backend.cluster, backend.cluster.get_owner(owner.ref), {PHASE: step.name})
    backend.eventually(lambda: target.running(backend.cluster, backend.cluster.get_owner(owner.ref)))
    return backend.cluster.get_owner(owner.ref)


def uids(backend: Backend, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in backend.pods(name)}


def conditions(backend: Backend, name: str) -> dict[str, str]:
    status: dict[str, Any] = backend.ask("GET", f"batch/v1 jobs/{name}").body["status"]
    return {one["type"]: one["status"] for one in status.get("conditions") or ()}


def test_suspended_and_resumed_it_counts_no_failure(backend: Backend, name: str) -> None:
    before = backend.job(name)
    old = uids(backend, name)
    after = restart(backend, name)
    assert (after.status.get("failed", 0), after.status["ready"], after.finished) == (0, 2, False)
    assert after.status["startTime"] >= before["status"]["startTime"]
    assert not old & uids(backend, name)


def test_while_suspended_nothing_of_it_runs(backend: Backend, name: str) -> None:
    backend.job(name)
    owner = resolve(backend.cluster, backend.namespace, backend.pods(name)[0]["metadata"]["name"]).owner
    backend.cluster.patch(owner.ref, {"spec": {"suspend": True}}, None)
    target = TARGETS[owner.group_kind]
    backend.eventually(lambda: target.stopped(backend.cluster, backend.cluster.get_owner(owner.ref)))
    stopped = backend.cluster.get_owner(owner.ref)
    assert [stopped.status.get(key, 0) for key in ("active", "terminating", "failed")] == [0, 0, 0]
    assert "startTime" not in stopped.status
    assert not target.running(backend.cluster, stopped)


def test_a_deleted_pod_counts_as_failed_and_may_end_the_job(backend: Backend, name: str) -> None:
    backend.job(name)
    backend.ask("DELETE", f"v1 pods/{backend.pods(name)[0]['metadata']['name']}")
    backend.eventually(lambda: conditions(backend, name).get("Failed") == "True")
    owner = backend.ask("GET", f"batch/v1 jobs/{name}").body
    assert owner["status"]["failed"] >= 1


def test_an_eviction_that_a_policy_ignores_costs_nothing(backend: Backend, name: str) -> None:
    backend.job(name, podFailurePolicy={"rules": [IGNORE]})
    pod = backend.cluster.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    backend.cluster.evict(pod)
    backend.eventually(lambda: pod.uid not in uids(backend, name) and backend.running(name))
    assert backend.ask("GET", f"batch/v1 jobs/{name}").body["status"].get("failed", 0) == 0
