"""docs/ agrees with the results of runs on a GPU in docs/data."""

from __future__ import annotations

import json
from typing import Any

from helpers import TESTS, kept_block

DOCS = TESTS.parent / "docs"
Rows = list[dict[str, Any]]


def recorded(name: str) -> Any:
    return json.loads((DOCS / "data" / f"{name}.json").read_text(encoding="utf-8"))


def exact(rows: Rows) -> str:
    return f"{sum(row['predicted'] == row['truth'] for row in rows)} of {len(rows)}"


def exactness(name: str, rows: Rows) -> str:
    limited, free = ([row for row in rows if (row["limit"] is None) is free] for free in (False, True))
    return f"| {name} | {exact(limited)} | {exact(free)} |"


def test_exactness_table_is_up_to_date() -> None:
    rows: Rows = recorded("exactness")
    assert [row for row in rows if row["predicted"] != row["truth"]] == []
    by_conf = {conf: [row for row in rows if row["conf"] == conf] for conf in dict.fromkeys(r["conf"] for r in rows)}
    lines = [exactness(f"`{conf}`" if conf else "default", of) for conf, of in by_conf.items()]
    head = ["| setting | exact under a limit | exact without one |", "| --- | --- | --- |"]
    kept_block(DOCS / "exactness.md", "exactness", [*head, *lines, exactness("all", rows)])


def test_leak_table_is_up_to_date() -> None:
    rows: Rows = recorded("leak_detection")
    lines = [f"| {row['loop']} | {row['step_seconds'] * 1000:.0f} ms | {row['logged_at'] or 'none'} |" for row in rows]
    kept_block(DOCS / "leaks.md", "loops", ["| loop | step | leak found at step |", "| --- | --- | --- |", *lines])
    assert next(row["logged_at"] for row in rows if row["loop"] == "leak") <= 60
    assert [row["logged_at"] for row in rows if not row["leaks"]] == [None] * 6


def test_memcheck_found_no_error() -> None:
    found = recorded("memcheck")
    assert (found["exit"], found["errors"], found["agent"]["agent_errors"]) == (0, 0, {})
    assert {"boundary", "peak"} <= {*found["agent"]["moments"]}


def test_performance_page_has_recorded_figures() -> None:
    page = " ".join((DOCS / "performance.md").read_text(encoding="utf-8").split())
    pauses, overhead = recorded("agent_pause"), recorded("step_recording")["overhead"][0]
    assert [row["blocks"] for row in pauses] == [1_000, 10_000, 100_000]
    for name, digits in (("copy", (2, 2, 1)), ("measure", (2, 2, 1)), ("stats", (2, 2, 2))):
        figures = " / ".join(f"{row[name]:.{places}f}" for row, places in zip(pauses, digits))
        assert f"| {figures} ms |" in page
    assert len(overhead["ratios"]) == 10
    assert f"{overhead['ratio']:.4f} times the time without" in page
    assert f"95 % interval {overhead['low']:.4f} to {overhead['high']:.4f}" in page


def test_recorded_peaks_are_torchs_own() -> None:
    page = (DOCS / "agent-reference.md").read_text(encoding="utf-8")
    rows: Rows = recorded("step_recording")["coverage"]
    assert all(row["exact"] == row["recordings"] for row in rows)
    assert f"all {sum(row['recordings'] for row in rows)} recorded peaks" in page


def test_limits_of_steps_are_exact() -> None:
    rows: Rows = recorded("margin")
    assert [row["succeeds"] and row["fails_2_mib_below"] for row in rows] == [True] * 10


def test_share_of_close_live_predictions_is_up_to_date() -> None:
    page = (DOCS / "fit.md").read_text(encoding="utf-8")
    errors = [error for row in recorded("live_whatif") for error in row["error"].values()]
    assert f"{sum(abs(error) <= 0.02 for error in errors)} of {len(errors)} are within 2 %" in page


def test_warnings_before_staged_errors_are_up_to_date() -> None:
    rows: Rows = recorded("oom_warnings")
    failed, healthy = ([row for row in rows if row["failed"] is which] for which in (True, False))
    assert (len(failed), len(healthy)) == (20, 8)
    assert {row["loop"] for row in failed if not row["warned"]} == {"surge"}
    firing = sum("GpuMemoryMarginFalling" in row["firing"] for row in failed)
    false_alarms = sum(bool(row["firing"]) for row in healthy)
    page = " ".join((DOCS / "prometheus.md").read_text(encoding="utf-8").split())
    assert f"GpuMemoryMarginFalling was firing in {firing} of 20" in page
    assert f"false alarms in {false_alarms} of 8 healthy loops" in page
