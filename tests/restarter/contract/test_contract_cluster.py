"""The client on every API server under test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufrag.restarter.backend import Conflict, Denied, Invalid, NotFound, TooMany
from gpufrag.restarter.kubernetes.client import Event, KubernetesClient
from gpufrag.restarter.kubernetes.objects import JOB, JOB_SET, POD, Owner
from gpufrag.restarter.kubernetes.owners import resolve
from gpufrag.restarter.kubernetes.permissions import needed, role_rules
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import PHASE
from restarter.contract.backend import JOB as SPEC
from restarter.contract.backend import Backend

MARK = {"metadata": {"annotations": {PHASE: "trying"}}}


@pytest.fixture
def owner(backend: Backend, name: str) -> Owner:
    """A running Job, found by one of its pods."""
    backend.job(name)
    return resolve(backend.client, backend.namespace, backend.pods(name)[0]["metadata"]["name"]).owner


def test_pod_leads_to_its_job(backend: Backend, owner: Owner, name: str) -> None:
    assert (owner.group_kind, owner.name, owner.finished, owner.deleting) == (JOB, name, False, False)


def test_missing_pod_is_refused(backend: Backend, name: str) -> None:
    with pytest.raises(Refused) as refused:
        resolve(backend.client, backend.namespace, name)
    assert refused.value.reason.label == "pod-gone"


def test_patch_is_accepted_once(backend: Backend, owner: Owner) -> None:
    patched = backend.client.patch(owner.ref, MARK, owner.resource_version)
    assert patched.annotations[PHASE] == "trying"
    with pytest.raises(Conflict):
        backend.client.patch(owner.ref, MARK, owner.resource_version)


def test_patch_checks_the_uid(backend: Backend, owner: Owner) -> None:
    with pytest.raises(Conflict):
        backend.client.patch(replace(owner.ref, uid="11111111-0000-4000-8000-000000000000"), MARK, None)


def test_owner_of_another_uid_is_not_found(backend: Backend, owner: Owner) -> None:
    with pytest.raises(NotFound, match="another object has its name"):
        backend.client.get_owner(replace(owner.ref, uid="11111111-0000-4000-8000-000000000000"))


def test_unknown_field_is_invalid(backend: Backend, owner: Owner) -> None:
    with pytest.raises(Invalid):
        backend.client.patch(owner.ref, {"spec": {"suspended": True}}, None)


def test_dry_run_changes_nothing(backend: Backend, owner: Owner) -> None:
    would_be = backend.client.patch(owner.ref, {"spec": {"suspend": True}}, None, dry_run=True)
    assert would_be.spec["suspend"] is True
    assert not backend.client.get_owner(owner.ref).spec.get("suspend")


def test_marked_owners_are_found(backend: Backend, owner: Owner) -> None:
    assert owner.uid not in {one.uid for one in backend.client.list_marked(JOB, backend.namespace)}
    backend.client.patch(owner.ref, MARK, None)
    assert owner.uid in {one.uid for one in backend.client.list_marked(JOB, backend.namespace)}


def test_pods_are_found_by_label(backend: Backend, owner: Owner) -> None:
    pods = backend.client.list_pods(backend.namespace, f"batch.kubernetes.io/controller-uid={owner.uid}")
    assert [(pod.ready, pod.deleting, pod.alive) for pod in pods] == [(True, False, True)] * 2


def test_event_is_stored(backend: Backend, owner: Owner) -> None:
    backend.client.create_event(Event(owner.ref, "WouldRestart", "a try", at_s=1.8e9))
    events = backend.ask("GET", "events.k8s.io/v1 events").body["items"]
    found = [one for one in events if one["regarding"].get("uid") == owner.uid and one["reason"] == "WouldRestart"]
    assert [(one["note"], one["type"]) for one in found] == [("a try", "Normal")]


def test_eviction_checks_the_uid(backend: Backend, owner: Owner, name: str) -> None:
    pod = backend.client.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    with pytest.raises(Conflict):
        backend.client.evict(replace(pod, uid="11111111-0000-4000-8000-000000000000"))
    backend.client.evict(pod, dry_run=True)
    assert not backend.client.get_pod(pod.namespace, pod.name).deleting
    backend.client.evict(pod)
    backend.eventually(lambda: pod.uid not in [one["metadata"]["uid"] for one in backend.pods(name)])


def test_disruption_budget_forbids_an_eviction(backend: Backend, owner: Owner, name: str) -> None:
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"job-name": name}}}
    backend.create("policy/v1 poddisruptionbudgets", {"metadata": {"name": name}, "spec": spec})
    pod = backend.client.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    error = backend.eventually(lambda: _refusal_to_evict(backend, pod))
    assert error.retry_after_s in (None, 10.0)


def _refusal_to_evict(backend: Backend, pod: Any) -> TooMany | None:
    try:
        backend.client.evict(pod, dry_run=True)  # allowed until the budget is known
    except TooMany as error:
        return error
    return None


def test_bad_token_is_denied(backend: Backend, name: str) -> None:
    stranger = backend.with_token("nonsense")
    with pytest.raises(Denied, match="401"):
        stranger.get_pod(backend.namespace, name)


def test_shipped_role_is_sufficient_and_minimal(backend: Backend, owner: Owner, name: str) -> None:
    limited = backend.with_rules(role_rules([JOB]))
    backend.eventually(lambda: not lacking(limited, backend.namespace))
    limited.patch(owner.ref, MARK, None)
    assert [limited.can_i(verb, POD, backend.namespace) for verb in ("get", "delete")] == [True, False]
    with pytest.raises(Denied, match="403"):
        limited.evict(limited.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"]))


def lacking(client: KubernetesClient, namespace: str) -> list[str]:
    rows = [(verb, row) for row in needed([JOB]) for verb in row.verbs]
    return [f"{verb} {row.resource}" for verb, row in rows if not client.can_i(verb, row.kind, namespace)]


def test_missing_permissions_are_found(backend: Backend) -> None:
    limited = backend.with_rules([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    backend.eventually(lambda: limited.can_i("get", POD, backend.namespace))
    assert lacking(limited, backend.namespace) == ["create events", "get jobs", "list jobs", "patch jobs"]


def test_server_returns_the_user_name(backend: Backend) -> None:
    assert backend.client.whoami()


def test_list_of_an_absent_kind_is_a_tuple(backend: Backend) -> None:
    assert isinstance(backend.client.list_marked(JOB_SET, backend.namespace), tuple)


def test_job_created_suspended_has_no_pods(backend: Backend, name: str) -> None:
    backend.create("batch/v1 jobs", {"metadata": {"name": name}, "spec": {**SPEC, "suspend": True}})
    assert backend.pods(name) == []
