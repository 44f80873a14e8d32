"""What is read from the objects of an API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter.errors import Away
from gpufrag.restarter.kubernetes import kinds
from gpufrag.restarter.kubernetes.cluster import GroupKind, Ref
from gpufrag.restarter.kubernetes.kinds import group_version
from gpufrag.restarter.kubernetes.objects import controller_of, owner_from, pod_from

META = {"name": "train", "namespace": "ml", "uid": "u", "resourceVersion": "7"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def finished(kind: GroupKind, status: Any) -> bool:
    return owner_from({"metadata": META, "status": status}, group_version(kind), kind.kind).finished


def condition(name: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": status}]}


ENDS = [
    *((kinds.JOB, condition(name)) for name in ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")),
    *((kinds.JOB_SET, condition(name)) for name in ("Completed", "Failed")),
    *((kinds.TRAIN_JOB, condition(name)) for name in ("Complete", "Failed")),
    *((kinds.PYTORCH_JOB, condition(name)) for name in ("Succeeded", "Failed")),
    *((kinds.RAY_JOB, {"jobDeploymentStatus": name}) for name in ("Complete", "Failed")),
    *((kinds.VOLCANO_JOB, {"state": {"phase": name}}) for name in ("Completed", "Failed", "Aborted", "Terminated")),
    *((kinds.WORKFLOW, {"phase": name}) for name in ("Succeeded", "Failed", "Error")),
]
GOES_ON = [
    (kinds.JOB, None),
    (kinds.JOB, condition("Failed", "False")),
    (kinds.JOB, condition("Suspended")),
    (kinds.PYTORCH_JOB, condition("Running")),
    (kinds.RAY_JOB, {"jobDeploymentStatus": "Running"}),
    (kinds.RAY_JOB, condition("Failed")),
    (kinds.VOLCANO_JOB, {"state": {"phase": "Restarting"}}),
    (kinds.WORKFLOW, {"phase": "Running"}),
    (kinds.DEPLOYMENT, condition("Available")),
]


@pytest.mark.parametrize(("kind", "status"), ENDS)
def test_each_kind_says_in_its_own_way_that_it_has_ended(kind: GroupKind, status: Any) -> None:
    assert finished(kind, status)


@pytest.mark.parametrize(("kind", "status"), GOES_ON)
def test_and_that_it_goes_on(kind: GroupKind, status: Any) -> None:
    assert not finished(kind, status)


def test_a_deletion_that_is_under_way_is_seen() -> None:
    raw = {"metadata": {**META, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert owner_from(raw, "batch/v1", "Job").deleting
    assert pod_from(raw).deleting


@pytest.mark.parametrize(
    ("phase", "alive"),
    [("Pending", True), ("Running", True), ("Unknown", True), ("Succeeded", False), ("Failed", False)],
)
def test_a_pod_lives_until_it_has_ended(phase: str, alive: bool) -> None:
    assert pod_from({"metadata": META, "status": {"phase": phase}}).alive == alive


def test_an_object_without_its_empty_parts_is_one() -> None:
    pod = pod_from({"metadata": {**META, "labels": None, "ownerReferences": None}, "status": None})
    assert (pod.labels, pod.owner_references, pod.phase, pod.ready, pod.ip) == ({}, (), "", False, None)


def test_of_several_owners_the_controller_counts() -> None:
    one = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}
    other = {"apiVersion": "batch/v1", "kind": "Job", "name": "b", "uid": "2", "controller": True}
    assert controller_of([one, other], "ml") == Ref("batch/v1", "Job", "ml", "b", "2")
    assert controller_of([{**one, "controller": False}], "ml") is None


@given(JSON)
def test_what_is_no_object_is_said_to_be_none(raw: Any) -> None:
    with pytest.raises(Away, match="no object"):
        owner_from(raw, "batch/v1", "Job")
