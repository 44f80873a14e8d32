"""docs/leaks.md and docs/data agree with the recorded runs on a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from helpers import TESTS, kept

DOCS = TESTS.parent / "docs"


def recorded(name: str) -> Any:
    return json.loads((DOCS / "data" / name).read_text(encoding="utf-8"))


def filled(page: Path, block: str, table: list[str]) -> str:
    """The page with `table` between the two marks of `block`."""
    marks = re.compile(rf"(<!-- {block}: begin[^\n]*-->\n).*?(<!-- {block}: end -->)", re.DOTALL)
    text, found = marks.subn(lambda m: m[1] + "\n".join(table) + "\n" + m[2], page.read_text(encoding="utf-8"))
    assert found == 1, f"{page.name} has no block {block}"
    return text


def leak_table() -> list[str]:
    lines = ["| loop | step | leak found at step |", "| --- | --- | --- |"]
    for row in recorded("leak_detection.json"):
        lines.append(f"| {row['loop']} | {row['step_seconds'] * 1000:.0f} ms | {row['logged_at'] or 'none'} |")
    return lines


def test_the_leaks_are_of_the_recorded_run() -> None:
    kept(DOCS / "leaks.md", filled(DOCS / "leaks.md", "loops", leak_table()))


def test_a_leak_was_found_in_time_and_no_healthy_loop_was_called_one() -> None:
    loops = {row["loop"]: row for row in recorded("leak_detection.json")}
    assert loops["leak"]["logged_at"] <= 60
    healthy = [row["logged_at"] for row in loops.values() if not row["leaks"]]
    assert healthy == [None] * 6


def test_memcheck_found_nothing_in_a_training_that_the_agent_watched() -> None:
    found = recorded("memcheck.json")
    assert (found["exit"], found["errors"], found["agent"]["agent_errors"]) == (0, 0, {})
    assert {"boundary", "peak"} <= {*found["agent"]["moments"]}
