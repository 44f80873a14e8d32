"""What each answer of an API server is taken for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter.errors import Away, ClusterError, Conflict, Denied, Invalid, NotFound, TooMany
from gpufrag.restarter.kubernetes.answers import MAX_TEXT, decoded, error_of

MEANT = {
    301: Invalid,
    400: Invalid,
    401: Denied,
    403: Denied,
    404: NotFound,
    405: Invalid,
    408: Away,
    409: Conflict,
    410: Away,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooMany,
    500: Away,
    503: Away,
    504: Away,
}


def status(message: str = "", **details: Any) -> bytes:
    return json.dumps({"kind": "Status", "message": message, "details": details}).encode()


@pytest.mark.parametrize(("code", "kind"), MEANT.items())
def test_each_code_has_its_meaning(code: int, kind: type[ClusterError]) -> None:
    error = error_of(code, {}, status("because"), "GET x")
    assert type(error) is kind
    assert str(error).startswith(f"GET x: answered {code}: because")


@given(st.integers(300, 999), st.binary(max_size=60), st.dictionaries(st.just("Retry-After"), st.text(max_size=9)))
def test_no_body_and_no_header_breaks_it(code: int, content: bytes, headers: dict[str, str]) -> None:
    assert "\n" not in str(error_of(code, headers, content, "GET x"))


@pytest.mark.parametrize("content", [b"", b"404 page not found\n", b"<html>", b"[1]", b"{}", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_status_is_not_told(content: bytes) -> None:
    assert str(error_of(404, {}, content, "GET x")) == "GET x: answered 404"


def test_a_message_is_one_line_and_not_long() -> None:
    text = str(error_of(409, {}, status("a\n b" + "c" * 5000), "GET x"))
    assert text.startswith("GET x: answered 409: a b")
    assert len(text) < MAX_TEXT + 40


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "10"}, {}, 10.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "10"}, {"retryAfterSeconds": 3}, 10.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
        ({"Retry-After": "-1"}, {}, None),
        ({"Retry-After": "9" * 30}, {}, None),
        ({}, {}, None),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_the_time_to_wait_is_kept(headers: Any, details: Any, seconds: float | None, code: int) -> None:
    error = error_of(code, headers, status(**details), "GET x")
    assert isinstance(error, (TooMany, Away))
    assert error.retry_after_s == seconds


def test_a_uid_that_differs_is_another_object() -> None:
    assert isinstance(error_of(422, {}, status(causes=[{"field": "metadata.uid"}]), "x"), Conflict)
    assert isinstance(error_of(422, {}, status(causes=[{"field": "spec.suspend"}, "?"]), "x"), Invalid)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xfe", b"[" * 100_000])
def test_a_good_answer_that_is_no_json_comes_from_something_else(content: bytes) -> None:
    with pytest.raises(Away, match="is it an API server"):
        decoded(content, "GET x")
