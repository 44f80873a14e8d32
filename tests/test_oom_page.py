"""docs/oom.md matches the errors staged on a GPU."""

from __future__ import annotations

import json
import re

from gpufrag.units import format_bytes
from helpers import TESTS, kept

DOCS = TESTS.parent / "docs"
STAGED = json.loads((DOCS / "data" / "oom_verdicts.json").read_text(encoding="utf-8"))


def table() -> str:
    lines = [
        "| staged error | verdict | request | free_total | largest_allocatable |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in STAGED["verdicts"]:
        sizes = (format_bytes(row[key]) for key in ("requested", "free_total", "largest_allocatable"))
        lines.append(f"| {row['stage'].replace('_', ' ')} | `{row['verdict']}` | {' | '.join(sizes)} |")
    return "\n".join(lines)


def test_table_matches_the_recorded_run() -> None:
    page = (DOCS / "oom.md").read_text(encoding="utf-8")
    block = re.compile(r"(<!-- stages: begin[^\n]*-->\n).*?(<!-- stages: end -->)", re.DOTALL)
    kept(DOCS / "oom.md", block.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", page))


def test_all_twelve_verdicts_were_right() -> None:
    assert len(STAGED["verdicts"]) == 12
    assert all(row["verdict"] == row["truth"] for row in STAGED["verdicts"])


def test_pause_matches_the_recorded_run() -> None:
    pause, page = STAGED["pause"], (DOCS / "oom.md").read_text(encoding="utf-8")
    assert pause["blocks"] == 10_000
    figures = (pause["on_top_of_the_snapshot_ms"], pause["on_top_of_the_snapshot_slowest_ms"], pause["snapshot_ms"])
    assert all(f"{milliseconds:.1f} ms" in page for milliseconds in figures)
