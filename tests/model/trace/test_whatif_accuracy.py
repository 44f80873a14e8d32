"""Six workloads, each on two inputs: predictions for five settings from a default recording, and the real results."""

from __future__ import annotations

import json
from functools import cache

import pytest

from gpufrag.model.settings import parse_conf
from gpufrag.model.trace.whatif import Run, play, read_run
from gpufrag.snapshot_file.recording import read_recording
from helpers import TESTS, kept_block

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
SEEDS = {0: FOLDER, 1: FOLDER / "seed1"}
REAL = {
    (seed, row["workload"], row["setting"]): row["real"]
    for seed, folder in SEEDS.items()
    for row in json.loads((folder / "peaks.json").read_text(encoding="utf-8"))
}


@cache
def recorded(seed: int, workload: str) -> Run:
    recording = read_recording(SEEDS[seed] / f"{workload}.json.gz", torch="2.11.0")
    return read_run(recording.events, recording.end, recording.before)


@cache
def predicted(seed: int, workload: str, setting: str) -> int:
    """Under the limit of the real runs, 1.5 times the recorded peak."""
    limit = REAL[seed, workload, "default"] * 3 // 2 // MIB * MIB
    return play(recorded(seed, workload), parse_conf(CONFS[setting]), limit).peak_reserved


@pytest.mark.parametrize(("seed", "workload", "setting"), REAL)
def test_predicted_peak_is_exact(seed: int, workload: str, setting: str) -> None:
    assert predicted(seed, workload, setting) == REAL[seed, workload, setting]


@pytest.mark.parametrize(("seed", "workload"), sorted({(seed, workload) for seed, workload, _ in REAL}))
def test_lowest_predicted_peak_is_the_lowest_real_one(seed: int, workload: str) -> None:
    best = min(CONFS, key=lambda setting: predicted(seed, workload, setting))
    assert REAL[seed, workload, best] == min(REAL[seed, workload, setting] for setting in CONFS)


def table() -> list[str]:
    """The real peaks on the first input, which the predictions equal."""
    heads = [f"`{conf}`" if conf else "torch's defaults" for conf in CONFS.values()]
    lines = [f"| workload (peaks in MiB) | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    for workload in dict.fromkeys(workload for _, workload, _ in REAL):
        peaks = [f"{REAL[0, workload, setting] / MIB:,.0f}" for setting in CONFS]
        lines.append(f"| {workload} | {' | '.join(peaks)} |")
    return lines


def test_documented_table_is_up_to_date() -> None:
    kept_block(PAGE, "peaks", table())
