"""Every body that we make is what its kind may be, in each minor version from the oldest that is supported."""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter.kubernetes.client import bodies
from gpufrag.restarter.kubernetes.cluster import Event, Pod, Ref
from gpufrag.restarter.kubernetes.kinds import JOB, VOLCANO_JOB, group_version
from restarter.fake_api import crds, manifests

UID = "11111111-0000-4000-8000-000000000000"
JOB_REF = Ref("batch/v1", "Job", "ml", "train", UID)
POD = Pod("ml", "train-0", UID)
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
EVENT = Event(JOB_REF, "Restarted", "the ratio was 6", at_s=1_800_000_000.25, related=POD.ref)
MADE = [
    bodies.event(EVENT, "restarter-0"),
    bodies.eviction(POD),
    bodies.access_review("create", JOB, "ml", "eviction"),
    bodies.subject_review(),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("body", MADE, ids=lambda body: body["kind"])
def test_bodies_fit_their_schema(body: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("make", [manifests.job, manifests.deployment, manifests.stateful_set, manifests.bare_pod])
def test_the_manifests_of_the_tests_do_too(make: Any, version: str) -> None:
    kubernetes_validate.validate(make(), version, strict=True)


def test_a_body_that_does_not_fit_is_found_out() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**MADE[0], "notes": "x"}, VERSIONS[-1], strict=True)


def test_a_command_fits_volcanos_schema_and_belongs_to_its_job() -> None:
    job = Ref(group_version(VOLCANO_JOB), "Job", "ml", "train", UID)
    body = bodies.command(job, "RestartJob", "again")
    jsonschema.Draft202012Validator(crds.SCHEMAS["Command"]).validate(body)
    assert body["target"] == body["metadata"]["ownerReferences"][0]
    assert (body["target"]["uid"], body["action"]) == (UID, "RestartJob")
    assert "blockOwnerDeletion" not in body["target"]


def test_an_event_tells_when_who_and_of_whom() -> None:
    body = MADE[0]
    assert body["eventTime"] == "2027-01-15T08:00:00.250000Z"
    assert (body["reportingController"], body["reportingInstance"]) == ("gpufrag.dev/restarter", "restarter-0")
    assert body["regarding"]["uid"] == UID
    assert body["type"] == "Normal"


@given(st.text(max_size=3000), st.text(max_size=300))
def test_an_event_is_never_too_long(note: str, reason: str) -> None:
    body = bodies.event(Event(JOB_REF, reason, note, at_s=0.0, warning=True), "x" * 300)
    assert len(body["note"]) <= 1024
    assert max(len(body["reason"]), len(body["reportingInstance"])) <= 128
    assert note.startswith(body["note"].removesuffix("…")) or note == body["note"]
