"""docs/performance.md matches the recorded runs on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
PAGE = " ".join((DOCS / "performance.md").read_text().split())


def recorded(name: str) -> Any:
    return json.loads((DOCS / "data" / name).read_text())


def test_the_pauses_are_those_of_the_recorded_run() -> None:
    rows = recorded("agent_pause.json")
    assert [row["blocks"] for row in rows] == [1_000, 10_000, 100_000]
    for name, digits in (("copy", (2, 2, 1)), ("measure", (2, 2, 1)), ("stats", (2, 2, 2))):
        figures = " / ".join(f"{row[name]:.{places}f}" for row, places in zip(rows, digits))
        assert f"| {figures} ms |" in PAGE


def test_the_paired_stretches_are_those_of_the_recorded_run() -> None:
    found = recorded("agent_overhead.json")
    assert len(found["pairs"]) == 8
    assert f"{found['ratio']:.4f} times the time without" in PAGE
    assert f"95 % interval {found['low']:.4f} to {found['high']:.4f}" in PAGE
