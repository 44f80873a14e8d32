"""The table of reasons: each has its row, wherever it is raised, and its texts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gpufrag.restarter
from gpufrag.restarter import reasons
from gpufrag.restarter.errors import Away, ClusterError, Conflict, Denied, Invalid, NotFound, Refused, TooMany
from gpufrag.restarter.reasons import REASONS, Reason, Skip

PACKAGE = Path(gpufrag.restarter.__file__).parent
LABELS = {reason.label for reason in REASONS}


def raised() -> set[str]:
    """The reasons that any module gives to Refused."""
    calls = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    found = [node.args[0] for node in calls if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refused"]
    return {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_refusal_has_a_row() -> None:
    assert raised()
    assert raised() - LABELS == set()


def test_labels_tell_reasons_apart() -> None:
    assert len(LABELS) == len(REASONS)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.label)
def test_a_reason_is_a_label_and_two_texts_for_people(reason: Reason) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", reason.label)
    assert reason.text
    assert reason.remedy
    assert not (reason.text + reason.remedy).endswith(".")


def test_every_reason_of_the_module_is_in_the_table() -> None:
    rows = [value for value in vars(reasons).values() if isinstance(value, Reason)]
    assert [row for row in rows if row not in REASONS] == []


def test_a_refusal_keeps_its_own_words() -> None:
    assert reasons.refused(Refused("kueue", "Job ml/x is queued by Kueue")).text == "Job ml/x is queued by Kueue"


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (Conflict("x"), "conflict"),
        (NotFound("x"), "owner-gone"),
        (Denied("x"), "denied"),
        (Invalid("x"), "invalid"),
        (TooMany("x"), "api-away"),
        (Away("x"), "api-away"),
    ],
)
def test_every_answer_of_a_cluster_is_a_reason(error: ClusterError, label: str) -> None:
    assert reasons.failed(error).reason.label == label


def test_the_text_says_what_and_what_to_do() -> None:
    assert Skip(reasons.BUDGET, "4 of 4").text.startswith("the job's restarts of the last 24 h are spent (4 of 4); see")
