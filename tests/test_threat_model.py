"""Each measure of the threat model is proven by a test that is there."""

from __future__ import annotations

import re

import pytest

from helpers import TESTS

PAGE = (TESTS.parent / "docs" / "threat-model.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`tests/([\w/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids="::".join)
def test_what_proves_it_is_there(file: str, test: str) -> None:
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"def {test}(" in text if test else "def test_" in text


def test_every_row_of_a_table_with_proofs_has_one() -> None:
    tables = [block for block in PAGE.split("\n\n") if "| proof |" in block]
    rows = [row for table in tables for row in table.partition("| --- |\n")[2].splitlines() if row.startswith("|")]
    assert len(rows) > 25
    assert [row for row in rows if "`tests/" not in row] == []
