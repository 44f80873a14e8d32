"""The answers of an API server that the restarter relies on."""

from __future__ import annotations

from typing import Any

import pytest

from restarter.contract.backend import JOB, Backend

PATCHED = {"metadata": {"annotations": {"a": "b"}}}


@pytest.fixture
def job(backend: Backend, name: str) -> dict[str, Any]:
    """Suspended from the start, so no controller changes it."""
    return backend.create("batch/v1 jobs", {"metadata": {"name": name}, "spec": {**JOB, "suspend": True}})


@pytest.fixture
def path(job: dict[str, Any]) -> str:
    return f"batch/v1 jobs/{job['metadata']['name']}"


def reason(reply: Any) -> tuple[int, str]:
    return reply.code, reply.body["reason"]


def test_object_is_created_once(backend: Backend, job: dict[str, Any]) -> None:
    body = {"metadata": {"name": job["metadata"]["name"]}, "spec": JOB}
    assert reason(backend.ask("POST", "batch/v1 jobs", body)) == (409, "AlreadyExists")


def test_missing_object_is_a_status_with_details(backend: Backend, name: str) -> None:
    reply = backend.ask("GET", f"batch/v1 jobs/{name}")
    assert reason(reply) == (404, "NotFound")
    assert reply.body["details"] == {"name": name, "group": "batch", "kind": "jobs"}


def test_missing_group_is_no_status(backend: Backend, name: str) -> None:
    reply = backend.ask("GET", f"absent.example.com/v1 things/{name}")
    assert (reply.code, reply.body) == (404, None)


def test_stale_version_is_a_conflict(backend: Backend, job: dict[str, Any], path: str) -> None:
    version = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"], **PATCHED["metadata"]}}
    backend.eventually(lambda: backend.ask("PATCH", path, PATCHED).code == 200)
    assert reason(backend.ask("PATCH", path, version)) == (409, "Conflict")


def test_wrong_uid_is_invalid_and_named(backend: Backend, path: str) -> None:
    reply = backend.ask("PATCH", path, {"metadata": {"uid": "11111111-0000-4000-8000-000000000000"}})
    assert reason(reply) == (422, "Invalid")
    assert "metadata.uid" in [cause["field"] for cause in reply.body["details"]["causes"]]


def test_dry_run_stores_nothing(backend: Backend, path: str) -> None:
    reply = backend.ask("PATCH", path, PATCHED, dryRun="All")
    assert (reply.code, reply.body["metadata"]["annotations"]["a"]) == (200, "b")
    assert "a" not in backend.ask("GET", path).body["metadata"].get("annotations", {})


def test_unknown_field_is_dropped_with_a_warning(backend: Backend, path: str) -> None:
    reply = backend.ask("PATCH", path, {"spec": {"suspended": True}})
    assert (reply.code, "suspended" in reply.body["spec"]) == (200, False)
    assert 'unknown field "spec.suspended"' in reply.headers["Warning"].replace("\\", "")


def test_unknown_field_is_rejected_if_strict(backend: Backend, path: str) -> None:
    assert backend.ask("PATCH", path, {"spec": {"suspended": True}}, fieldValidation="Strict").code == 422


@pytest.mark.parametrize(
    "change",
    [{"spec": {"parallelism": "two"}}, {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}}],
    ids=["wrong type", "immutable"],
)
def test_invalid_change_is_rejected(backend: Backend, path: str, change: Any) -> None:
    assert backend.ask("PATCH", path, change).code == 422


def test_patch_needs_a_content_type(backend: Backend, path: str) -> None:
    assert backend.ask("PATCH", path, PATCHED, content_type="application/json").code == 415


def test_deletion_checks_the_uid(backend: Backend, path: str) -> None:
    body = {"preconditions": {"uid": "11111111-0000-4000-8000-000000000000"}}
    assert reason(backend.ask("DELETE", path, body)) == (409, "Conflict")


def test_plain_deletion_keeps_the_pods(backend: Backend, path: str) -> None:
    assert "child pods are preserved by default" in backend.ask("DELETE", path).headers["Warning"]


def test_status_is_a_subresource(backend: Backend, path: str) -> None:
    backend.ask("PATCH", path, {"status": {"active": 77}})
    assert backend.ask("GET", path).body["status"].get("active", 0) == 0
