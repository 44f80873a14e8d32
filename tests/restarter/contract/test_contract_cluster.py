"""The adapter on every API server there is: it finds, changes, tells and refuses as the restarter expects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufrag.restarter.errors import Conflict, Denied, Invalid, NotFound, Refused, TooMany
from gpufrag.restarter.kubernetes.cluster import PHASE, Event, Owner
from gpufrag.restarter.kubernetes.kinds import EVENT, JOB, JOB_SET, POD
from gpufrag.restarter.kubernetes.owners import resolve
from gpufrag.restarter.kubernetes.permissions import lacking, needed, role_rules
from restarter.contract.backend import JOB as SPEC
from restarter.contract.backend import Backend

MARK = {"metadata": {"annotations": {PHASE: "trying"}}}


@pytest.fixture
def owner(backend: Backend, name: str) -> Owner:
    """A Job that runs, found by one of its pods."""
    backend.job(name)
    return resolve(backend.cluster, backend.namespace, backend.pods(name)[0]["metadata"]["name"]).owner


def test_a_pod_leads_to_its_job(backend: Backend, owner: Owner, name: str) -> None:
    assert (owner.group_kind, owner.name, owner.finished, owner.deleting) == (JOB, name, False, False)


def test_a_pod_that_is_gone_is_a_stale_alert(backend: Backend, name: str) -> None:
    with pytest.raises(Refused) as refused:
        resolve(backend.cluster, backend.namespace, name)
    assert refused.value.reason == "pod-gone"


def test_a_patch_is_taken_once(backend: Backend, owner: Owner) -> None:
    patched = backend.cluster.patch(owner.ref, MARK, owner.resource_version)
    assert patched.annotations[PHASE] == "trying"
    with pytest.raises(Conflict):
        backend.cluster.patch(owner.ref, MARK, owner.resource_version)


def test_a_patch_reaches_no_other_of_that_name(backend: Backend, owner: Owner) -> None:
    with pytest.raises(Conflict):
        backend.cluster.patch(replace(owner.ref, uid="11111111-0000-4000-8000-000000000000"), MARK, None)


def test_no_owner_of_another_uid_is_taken_for_it(backend: Backend, owner: Owner) -> None:
    with pytest.raises(NotFound, match="another has taken its name"):
        backend.cluster.get_owner(replace(owner.ref, uid="11111111-0000-4000-8000-000000000000"))


def test_a_field_that_the_server_does_not_know_is_not_lost_in_silence(backend: Backend, owner: Owner) -> None:
    with pytest.raises(Invalid):
        backend.cluster.patch(owner.ref, {"spec": {"suspended": True}}, None)


def test_a_dry_run_changes_nothing(backend: Backend, owner: Owner) -> None:
    would_be = backend.cluster.patch(owner.ref, {"spec": {"suspend": True}}, None, dry_run=True)
    assert would_be.spec["suspend"] is True
    assert not backend.cluster.get_owner(owner.ref).spec.get("suspend")


def test_marked_owners_are_found_again(backend: Backend, owner: Owner) -> None:
    assert owner.uid not in {one.uid for one in backend.cluster.list_marked(JOB, backend.namespace)}
    backend.cluster.patch(owner.ref, MARK, None)
    assert owner.uid in {one.uid for one in backend.cluster.list_marked(JOB, backend.namespace)}


def test_pods_are_found_by_label(backend: Backend, owner: Owner) -> None:
    pods = backend.cluster.list_pods(backend.namespace, f"batch.kubernetes.io/controller-uid={owner.uid}")
    assert [(pod.ready, pod.deleting, pod.alive) for pod in pods] == [(True, False, True)] * 2


def test_an_event_is_kept(backend: Backend, owner: Owner) -> None:
    backend.cluster.create_event(Event(owner.ref, "WouldRestart", "a try", at_s=1.8e9))
    events = backend.ask("GET", "events.k8s.io/v1 events").body["items"]
    found = [one for one in events if one["regarding"].get("uid") == owner.uid and one["reason"] == "WouldRestart"]
    assert [(one["note"], one["type"]) for one in found] == [("a try", "Normal")]


def test_eviction_reaches_this_very_pod_or_none(backend: Backend, owner: Owner, name: str) -> None:
    pod = backend.cluster.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    with pytest.raises(Conflict):
        backend.cluster.evict(replace(pod, uid="11111111-0000-4000-8000-000000000000"))
    backend.cluster.evict(pod, dry_run=True)
    assert not backend.cluster.get_pod(pod.namespace, pod.name).deleting
    backend.cluster.evict(pod)
    backend.eventually(lambda: pod.uid not in [one["metadata"]["uid"] for one in backend.pods(name)])


def test_a_disruption_budget_forbids_an_eviction_for_now(backend: Backend, owner: Owner, name: str) -> None:
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"job-name": name}}}
    backend.create("policy/v1 poddisruptionbudgets", {"metadata": {"name": name}, "spec": spec})
    pod = backend.cluster.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"])
    error = backend.eventually(lambda: _refusal_to_evict(backend, pod))
    assert error.retry_after_s == 10.0


def _refusal_to_evict(backend: Backend, pod: Any) -> TooMany | None:
    try:
        backend.cluster.evict(pod, dry_run=True)  # until the budget is known, it would be allowed
    except TooMany as error:
        return error
    return None


def test_a_bad_token_is_denied(backend: Backend, name: str) -> None:
    stranger = backend.with_token("nonsense")
    with pytest.raises(Denied, match="401"):
        stranger.get_pod(backend.namespace, name)


def test_a_role_as_we_ship_it_is_enough_and_no_more(backend: Backend, owner: Owner, name: str) -> None:
    limited = backend.with_rules(role_rules([JOB]))
    backend.eventually(lambda: not lacking(limited, [JOB], backend.namespace))
    limited.patch(owner.ref, MARK, None)
    assert [limited.can_i(verb, POD, backend.namespace) for verb in ("get", "delete")] == [True, False]
    with pytest.raises(Denied, match="403"):
        limited.evict(limited.get_pod(backend.namespace, backend.pods(name)[0]["metadata"]["name"]))


def test_who_lacks_what_is_said_for_each_verb(backend: Backend) -> None:
    stranger = backend.with_rules([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    wanted = [(verb, one.kind) for one in needed([JOB]) for verb in one.verbs if one.kind != POD]
    backend.eventually(lambda: stranger.can_i("get", POD, backend.namespace))
    assert [(verb, one.kind) for verb, one in lacking(stranger, [JOB], backend.namespace)] == wanted
    assert wanted == [("create", EVENT), ("get", JOB), ("list", JOB), ("patch", JOB)]


def test_the_server_knows_who_asks(backend: Backend) -> None:
    assert backend.cluster.whoami()


def test_no_kind_is_no_owner(backend: Backend) -> None:
    assert isinstance(backend.cluster.list_marked(JOB_SET, backend.namespace), tuple)


def test_a_job_made_suspended_is_someone_elses(backend: Backend, name: str) -> None:
    backend.create("batch/v1 jobs", {"metadata": {"name": name}, "spec": {**SPEC, "suspend": True}})
    assert backend.pods(name) == []
