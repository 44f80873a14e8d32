"""Six workloads recorded under the default setting: what is predicted of five settings, and what really came."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from gpufrag.model.settings import parse_conf
from gpufrag.model.whatif import Run, play, read_run
from gpufrag.snapshot_file import read_recording
from helpers import TESTS, kept

FOLDER = TESTS / "fixtures" / "whatif"
PAGE = TESTS.parent / "docs" / "whatif.md"
MIB = 1 << 20
CONFS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "maxsplit": "max_split_size_mb:64",
    "roundup": "roundup_power2_divisions:4",
    "gc": "garbage_collection_threshold:0.6",
}
REAL = {
    (row["workload"], row["setting"]): row["real"]
    for row in json.loads((FOLDER / "peaks.json").read_text(encoding="utf-8"))
}


@cache
def recorded(workload: str) -> Run:
    recording = read_recording(FOLDER / f"{workload}.json.gz")
    return read_run(recording.events, recording.end, recording.before)


@cache
def predicted(workload: str, setting: str) -> int:
    """Under the limit of the real runs, 1.5 times the recorded peak."""
    limit = REAL[workload, "default"] * 3 // 2 // MIB * MIB
    return play(recorded(workload), parse_conf(CONFS[setting]), limit).peak_reserved


@pytest.mark.parametrize(("workload", "setting"), REAL)
def test_a_peak_is_predicted_exactly(workload: str, setting: str) -> None:
    assert predicted(workload, setting) == REAL[workload, setting]


@pytest.mark.parametrize("workload", sorted({workload for workload, _ in REAL}))
def test_the_lowest_predicted_peak_is_the_lowest_real_one(workload: str) -> None:
    best = min(CONFS, key=lambda setting: predicted(workload, setting))
    assert REAL[workload, best] == min(REAL[workload, setting] for setting in CONFS)


def table() -> str:
    lines = ["| workload | setting | predicted, MiB | real, MiB |", "| --- | --- | ---: | ---: |"]
    for workload, setting in REAL:
        conf = f"`{CONFS[setting]}`" if CONFS[setting] else "(torch's defaults)"
        guess, real = predicted(workload, setting) / MIB, REAL[workload, setting] / MIB
        lines.append(f"| {workload} | {conf} | {guess:,.0f} | {real:,.0f} |")
    return "\n".join(lines)


def test_the_documented_table_is_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    block = re.compile(r"(<!-- peaks: begin[^\n]*-->\n).*(\n<!-- peaks: end -->)", re.DOTALL)
    kept(PAGE, block.sub(lambda found: f"{found[1]}{table()}{found[2]}", page))
