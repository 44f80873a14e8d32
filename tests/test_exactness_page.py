"""docs/exactness.md matches the recorded run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers import kept

DOCS = Path(__file__).parent.parent / "docs"
BEGIN = "<!-- exactness: begin (generated from docs/data/exactness.json) -->\n"
END = "<!-- exactness: end -->"


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DOCS / "data/exactness.json").read_text())
    return found


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| setting | exact under a limit | exact without one |"
    yield "| --- | --- | --- |"
    for conf in dict.fromkeys(row["conf"] for row in rows):
        cells = [_exact([r for r in rows if r["conf"] == conf and (r["limit"] is None) == free]) for free in (0, 1)]
        yield f"| {f'`{conf}`' if conf else 'default'} | {cells[0]} | {cells[1]} |"
    totals = [_exact([row for row in rows if (row["limit"] is None) == free]) for free in (0, 1)]
    yield f"| all | {totals[0]} | {totals[1]} |"


def _exact(rows: list[dict[str, Any]]) -> str:
    return f"{sum(row['predicted'] == row['truth'] for row in rows)} of {len(rows)}"


def test_the_page_holds_the_recorded_table() -> None:
    page = DOCS / "exactness.md"
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    whole = f"{head}{BEGIN}" + "".join(f"{line}\n" for line in table(rows())) + f"{END}{tail}"
    kept(page, whole)


def test_every_recorded_answer_is_the_predicted_one() -> None:
    assert [row for row in rows() if row["predicted"] != row["truth"]] == []
