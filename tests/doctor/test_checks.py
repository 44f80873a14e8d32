"""Checks are independent of each other; their outcomes are lines and records."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from gpufrag.doctor import cluster, host, manifests, prometheus, ranks
from gpufrag.doctor.checks import Check, Fail, Ok, Outcome, Result, Unknown, Warn, examine, failed, some
from gpufrag.errors import Unavailable
from gpufrag.reports.terminal import bold
from helpers import TESTS, kept_block

PAGE = TESTS.parent / "docs" / "doctor.md"
FOLDER, *REST = host.CHECKS
EVERY: dict[str, Any] = {
    "host": [FOLDER, *ranks.CHECKS, *REST],
    "cluster": cluster.CHECKS,
    "prometheus": prometheus.CHECKS,
    "manifests": manifests.CHECKS,
}


def raising(error: Exception) -> Callable[[object], Result]:
    def run(context: object) -> Result:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unavailable("no such folder"), "no such folder"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (KeyError("data"), "bug in gpufrag (KeyError: 'data'); please report it"),
    ],
)
def test_check_that_raises_fails_and_does_not_stop_others(error, text):
    checks = [Check("bad", "", raising(error)), Check[object]("good", "", lambda _: Ok("well"))]
    assert [outcome.result for outcome in examine("host", checks, None)] == [Fail(text), Ok("well")]


@pytest.mark.parametrize("result", [Warn(""), Fail(""), Unknown("")])
def test_gate_that_is_not_ok_stops_the_checks_after_it(result):
    checks = [Check[object]("gate", "", lambda _: result, gate=True), Check[object]("after", "", lambda _: Ok(""))]
    assert [outcome.check for outcome in examine("host", checks, None)] == ["gate"]


@pytest.mark.parametrize("subject", EVERY)
def test_page_lists_every_check(subject):
    checks = EVERY[subject]
    assert len({check.name for check in checks}) == len(checks)
    rows = (f"| `{check.name}` | {check.looks_at} |" for check in checks)
    kept_block(PAGE, f"checks of {subject}", ["| check | question |", "| --- | --- |", *rows])


def outcome(result: Result) -> Outcome:
    return Outcome("host", "folder", "does it exist", result)


def test_line_is_aligned_and_record_has_stable_names():
    plain = bold(io.StringIO())
    assert outcome(Ok("well")).line(plain) == "     ok  host folder: well"
    assert outcome(Unknown("denied")).line(plain) == "UNKNOWN  host folder: denied"
    assert outcome(Warn("slow")).as_record() == {
        "subject": "host",
        "check": "folder",
        "looks_at": "does it exist",
        "result": "warn",
        "text": "slow",
    }


def test_line_with_a_hostile_name_is_printable():
    line = outcome(Warn("pod \x1b]0;title\x07x\nsecond line")).line(str)
    assert all(part.isprintable() for part in line.split("\n"))
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("result", "expected"), [(Ok(""), False), (Warn(""), False), (Fail(""), True), (Unknown(""), True)]
)
def test_failure_and_unknown_count_as_failed(result, expected):
    assert failed([outcome(Ok("")), outcome(result)]) == expected


def test_long_lists_are_cut():
    assert some(["b", "a"]) == "a, b"
    assert some(range(1, 8)) == "1, 2, 3, 4, 5 and 2 more"
