"""Checks are independent of each other, and each ends in a line."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from gpufrag.doctor import cluster, host, prometheus, report
from gpufrag.doctor.results import Check, Fail, Ok, Outcome, Result, Warn, examine, some
from gpufrag.errors import Unavailable
from gpufrag.reports.terminal import bold
from helpers import TESTS

EVERY = {"host": host.CHECKS, "cluster": cluster.CHECKS, "prometheus": prometheus.CHECKS}


def raising(error: Exception) -> Callable[[object], Result]:
    def run(context: object) -> Result:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unavailable("no such folder"), "no such folder"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (KeyError("data"), "a fault in gpufrag itself (KeyError: 'data'); report it"),
    ],
)
def test_a_check_that_raises_fails_and_stops_no_other(error, text):
    checks = [Check("bad", "", raising(error)), Check[object]("good", "", lambda _: Ok("well"))]
    assert [outcome.result for outcome in examine("host", checks, None)] == [Fail(text), Ok("well")]


@pytest.mark.parametrize("subject", EVERY)
def test_every_check_says_what_it_looks_at(subject):
    checks: Any = EVERY[subject]
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.looks_at for check in checks)


@pytest.mark.parametrize("subject", EVERY)
def test_the_page_has_every_check(subject):
    checks: Any = EVERY[subject]
    rows = [f"| `{check.name}` | {check.looks_at} |" for check in checks]
    page = (TESTS.parent / "docs" / "doctor.md").read_text(encoding="utf-8")
    begin, end = (f"<!-- checks of {subject}: {side} -->\n" for side in ("begin", "end"))
    assert page.partition(begin)[2].partition(end)[0].splitlines()[2:] == rows


def outcome(result: Result) -> Outcome:
    return Outcome("host", "folder", "is it there", result)


def test_a_line_is_aligned_and_a_record_has_names_that_stay():
    plain = bold(io.StringIO())
    assert report.line(outcome(Ok("well")), plain) == "  ok  host folder: well"
    assert report.line(outcome(Fail("gone")), plain) == "FAIL  host folder: gone"
    assert report.as_record(outcome(Warn("slow"))) == {
        "subject": "host",
        "check": "folder",
        "looks_at": "is it there",
        "result": "warn",
        "text": "slow",
    }


def test_only_a_failure_counts_as_one():
    assert not report.failed([outcome(Ok("")), outcome(Warn(""))])
    assert report.failed([outcome(Ok("")), outcome(Fail(""))])


def test_long_lists_are_cut():
    assert some(["b", "a"]) == "a, b"
    assert some(range(1, 8)) == "1, 2, 3, 4, 5 and 2 more"
