"""Behaviour of the fake that the restarter does not use, and that a real server was seen to have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from restarter.fake_api import manifests, selectors
from restarter.fake_api.faults import CUT_AFTER
from restarter.fake_api.served import of
from restarter.fake_api.server import TOKEN, FakeApi, fake_api

MERGE = "application/merge-patch+json"
JOB = "/apis/batch/v1/namespaces/ml/jobs/train"
JOB_SET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/train"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        yield one


def ask(api: FakeApi, method: str, path: str, body: Any = None, content_type: str = MERGE) -> httpx.Response:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": content_type}
    return httpx.request(method, api.url + path, json=body, headers=headers, trust_env=False, timeout=10)


@pytest.mark.parametrize(
    ("path", "make", "code"), [(JOB, manifests.job, 200), (JOB_SET, manifests.job_set, 415)], ids=["core", "custom"]
)
def test_strategic_merge_is_rejected_for_custom_resources(api: FakeApi, path: str, make: Any, code: int) -> None:
    api.world.apply(make())
    kind = "application/strategic-merge-patch+json"
    assert ask(api, "PATCH", path, {"spec": {"suspend": True}}, kind).status_code == code


def test_job_resumed_at_once_has_two_pods_of_an_index(api: FakeApi) -> None:
    """The reason why a restart waits until the last pod is gone."""
    api.world.apply(manifests.job())
    api.world.grace_ticks = 100
    for suspend in (True, False):
        ask(api, "PATCH", JOB, {"spec": {"suspend": suspend}})
    api.world.tick(3)
    assert len(api.world.pods()) == 4


def test_job_with_a_failure_policy_replaces_pods_that_are_gone(api: FakeApi) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    api.world.apply(manifests.job(podFailurePolicy={"rules": [rule]}))
    api.world.grace_ticks = 100
    for suspend in (True, False):
        ask(api, "PATCH", JOB, {"spec": {"suspend": suspend}})
    api.world.tick(3)
    assert len(api.world.pods()) == 2


def test_rank_that_exits_0_does_not_run_again(api: FakeApi) -> None:
    """The reason why a process that saved for a restart exits with another code."""
    api.world.apply(manifests.job())
    names = [pod["metadata"]["name"] for pod in api.world.pods()]
    api.world.end_pod(names[0], succeeded=True)
    for suspend in (True, False):
        ask(api, "PATCH", JOB, {"spec": {"suspend": suspend}})
        api.world.tick(5)
    running = [pod["metadata"]["name"] for pod in api.world.pods() if pod["status"]["phase"] == "Running"]
    assert [name.startswith("train-1-") for name in running] == [True]


def test_too_many_failures_fail_a_job(api: FakeApi) -> None:
    api.world.apply(manifests.job(backoffLimit=1))
    for _ in range(2):
        running = [pod for pod in api.world.pods() if pod["status"]["phase"] == "Running"]
        api.world.end_pod(running[0]["metadata"]["name"], succeeded=False)
        api.world.tick(3)
    status = api.world.get("batch/v1", "Job", "train")["status"]
    assert {one["type"]: one["reason"] for one in status["conditions"]}["Failed"] == "BackoffLimitExceeded"


def test_suspended_child_is_resumed_by_its_owner(api: FakeApi) -> None:
    """The reason why a restart acts on the topmost owner."""
    api.world.apply(manifests.job_set())
    child = "/apis/batch/v1/namespaces/ml/jobs/train-workers-0"
    assert ask(api, "PATCH", child, {"spec": {"suspend": True}}).status_code == 200
    api.world.tick(2)
    assert not api.world.get("batch/v1", "Job", "train-workers-0")["spec"]["suspend"]


def test_owned_objects_are_deleted_with_their_owner(api: FakeApi) -> None:
    api.world.apply(manifests.job_set())
    ask(api, "DELETE", JOB_SET)
    api.world.tick(10)
    assert api.world.pods() == api.world.store.of_kind(of("batch/v1", "Job")) == []


def test_answer_can_be_lost_after_the_change(api: FakeApi) -> None:
    api.world.apply(manifests.job())
    api.faults.next(1, CUT_AFTER)
    with pytest.raises(httpx.RemoteProtocolError):
        ask(api, "PATCH", JOB, {"spec": {"suspend": True}})
    assert api.world.get("batch/v1", "Job", "train")["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", True),
        ("a=1", True),
        ("a==1,b=2", True),
        ("a=2", False),
        ("a!=2", True),
        ("c!=2", True),
        ("a", True),
        ("!a", False),
        ("!c", True),
        ("a in (1,3),b", True),
        ("a notin (1,3)", False),
        ("c notin (1)", True),
    ],
)
def test_selector_matches_labels(selector: str, found: bool) -> None:
    assert selectors.matches(selector, {"a": "1", "b": "2"}) == found
