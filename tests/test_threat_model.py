"""docs/threat-model.md: every measure in a table names test files that exist."""

from __future__ import annotations

import re

import pytest

from helpers import TESTS

PAGE = (TESTS.parent / "docs" / "threat-model.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`tests/([\w/]+\.py)`", PAGE))))
def test_proof_exists(file: str) -> None:
    assert "def test_" in (TESTS / file).read_text(encoding="utf-8")


def test_every_measure_has_a_proof() -> None:
    tables = [block for block in PAGE.split("\n\n") if "| proof |" in block]
    rows = [row for table in tables for row in table.partition("| --- |\n")[2].splitlines() if row.startswith("|")]
    assert len(rows) > 25
    assert [row for row in rows if "`tests/" not in row] == []
