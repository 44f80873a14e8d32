"""Outcomes as lines for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..reports.terminal import Emphasis
from .results import Fail, Outcome


def word(outcome: Outcome) -> str:
    """ok, warn or fail."""
    return type(outcome.result).__name__.lower()


def failed(outcomes: Iterable[Outcome]) -> bool:
    return any(isinstance(outcome.result, Fail) for outcome in outcomes)


def line(outcome: Outcome, bold: Emphasis) -> str:
    told = word(outcome)
    padded = f"{told:>4}" if told == "ok" else bold(f"{told.upper():>4}")
    return f"{padded}  {outcome.subject} {outcome.check}: {outcome.result.text}"


def as_record(outcome: Outcome) -> dict[str, Any]:
    """The form of --json, by names that stay."""
    return {
        "subject": outcome.subject,
        "check": outcome.check,
        "looks_at": outcome.looks_at,
        "result": word(outcome),
        "text": outcome.result.text,
    }
