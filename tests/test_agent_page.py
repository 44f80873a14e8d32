"""docs/agent.md and docs/leaks.md say what the recorded runs on a GPU say."""

from __future__ import annotations

import json
import math
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


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def coverage_table() -> list[str]:
    lines = [
        "| decoder, batches | step | copies | p10 | p50 | p90 | by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in recorded("peak_sampling.json")["coverage"]:
        shares = " | ".join(f"{percentile(row['coverage'], share):.2f}" for share in (0.1, 0.5, 0.9))
        kind = row["kind"] if row["kind"].startswith("small") else f"large, {row['kind']}"
        length = f"{row['step_seconds'] * 1000:.0f} ms"
        lines.append(f"| {kind} | {length} | {len(row['coverage'])} | {shares} | `{row['method']}` |")
    return lines


def leak_table() -> list[str]:
    lines = ["| loop | step | leak found at step |", "| --- | --- | --- |"]
    for row in recorded("leak_detection.json"):
        lines.append(f"| {row['loop']} | {row['step_seconds'] * 1000:.0f} ms | {row['told_at'] or 'none'} |")
    return lines


def test_the_coverage_is_of_the_recorded_run() -> None:
    kept(DOCS / "agent.md", filled(DOCS / "agent.md", "peaks", coverage_table()))


def test_the_large_decoder_is_copied_near_its_peak() -> None:
    fixed, varying = (row["coverage"] for row in recorded("peak_sampling.json")["coverage"][:2])
    assert percentile(fixed, 0.5) >= 0.92
    assert (percentile(varying, 0.5) >= 0.88, percentile(varying, 0.1) >= 0.8) == (True, True)


def test_the_ratios_before_an_error_are_of_the_recorded_runs() -> None:
    runs, page = recorded("peak_sampling.json")["failures"], (DOCS / "agent.md").read_text(encoding="utf-8")
    assert len(runs) == 10
    for figure in ("error_ratio", "peak_ratio", "boundary_ratio"):
        found = [run[figure] for run in runs]
        assert f"{min(found):.1f} to {max(found):.1f}" in page


def test_the_leaks_are_of_the_recorded_run() -> None:
    kept(DOCS / "leaks.md", filled(DOCS / "leaks.md", "loops", leak_table()))


def test_a_leak_was_found_in_time_and_no_healthy_loop_was_called_one() -> None:
    loops = {row["loop"]: row for row in recorded("leak_detection.json")}
    assert loops["leak"]["told_at"] <= 60
    healthy = [row["told_at"] for row in loops.values() if not row["leaks"]]
    assert healthy == [None] * 6


def test_memcheck_found_nothing_in_a_training_that_the_agent_watched() -> None:
    found = recorded("memcheck.json")
    assert (found["exit"], found["errors"], found["agent"]["agent_errors"]) == (0, 0, {})
    assert {"boundary", "peak"} <= {*found["agent"]["moments"]}
