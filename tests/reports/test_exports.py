"""Files for speedscope and Perfetto: valid, and with the totals of the model and of torch's own tool."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest

from gpufrag.reports.explain import Explained
from gpufrag.reports.exports import MOST_BLOCKS, perfetto, speedscope
from gpufrag.snapshot_file.profile import read_profiles
from gpufrag.snapshot_file.reading import load
from helpers import SNAPSHOTS, TESTS, GoldenCase
from staged_programs import MIB, Process, growing_cache, run

SCHEMA = json.loads((TESTS / "fixtures" / "speedscope" / "file-format-schema.json").read_text())
RECORDED = ["default-0", "exp4g-0", "graph-pool", "pools-streams", "train-varlen"]


def explained(raw: Any) -> list[Explained]:
    return [Explained(*each) for each in read_profiles(raw, {})]


def weights(file: dict[str, Any], title: str) -> dict[tuple[str, ...], int]:
    """Bytes by stack, outermost frame first, of one profile of device 0."""
    names = [frame["name"] for frame in file["shared"]["frames"]]
    (profile,) = [each for each in file["profiles"] if each["name"] == f"device 0: {title}"]
    return {tuple(names[at] for at in stack): size for stack, size in zip(profile["samples"], profile["weights"])}


@pytest.mark.parametrize("name", RECORDED)
def test_speedscope_file_is_valid(name: str) -> None:
    raw = load(SNAPSHOTS / f"{name}.pickle.gz")
    file = json.loads(json.dumps(speedscope(explained(raw), raw, name)))
    jsonschema.validate(file, SCHEMA)
    for profile in file["profiles"]:
        assert profile["endValue"] == sum(profile["weights"])


def test_speedscope_totals_are_those_of_the_model() -> None:
    raw = load(SNAPSHOTS / "train-varlen.pickle.gz")
    (each,) = explained(raw)
    file = speedscope([each], raw, "snapshot")
    assert sum(weights(file, "live at the snapshot").values()) == each.profile.moments[-1].active
    assert sum(weights(file, "live at the worst moment").values()) == each.profile.worst.active
    assert sum(weights(file, "stranded at the worst moment").values()) == each.profile.worst.found.stranded


def test_speedscope_stack_has_outermost_frame_first() -> None:
    raw = run(growing_cache)
    (stack, *_) = weights(speedscope(explained(raw), raw, "snapshot"), "live at the snapshot")
    assert stack[0].startswith("/job/train.py:")
    assert stack[-1].startswith("/env/site-packages/torch/")


@pytest.mark.real
@pytest.mark.parametrize("name", RECORDED)
def test_speedscope_agrees_with_torchs_own_tool(name: str) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="no torch: totals were NOT compared with its tool")
    raw = load(SNAPSHOTS / f"{name}.pickle.gz")
    theirs: Counter[tuple[str, ...]] = Counter()
    gaps = 0
    for line in viz.memory(raw, format_flamegraph=str).splitlines():
        stack, _, size = line.rpartition(" ")
        _, state, *frames = stack.split(";")
        if state != "inactive":
            if frames == ["<gaps>"]:
                gaps += int(size)
            else:
                theirs[tuple(frames)] += int(size)
    ours = weights(speedscope(explained(raw), raw, name), "live at the snapshot")
    assert sum(ours.values()) == theirs.total() + gaps
    if not gaps:  # then blocks have the requested sizes, which torch's tool adds up
        assert sorted(ours.values()) == sorted(theirs.values())


def counters(file: dict[str, Any], name: str) -> list[int]:
    return [row["args"]["bytes"] for row in file["traceEvents"] if row["ph"] == "C" and row["name"] == name]


def test_perfetto_counters_follow_the_trace(golden_case: GoldenCase) -> None:
    found = explained(golden_case.raw)
    file = perfetto(found, "case")
    assert max(counters(file, "reserved")) == golden_case.raw["stats"]["reserved_bytes.all.peak"]
    assert counters(file, "reserved")[-1] == found[0].profile.moments[-1].reserved
    times = [row["ts"] for row in file["traceEvents"] if row["ph"] == "C"]
    assert times == sorted(times)


def test_perfetto_events_have_the_documented_fields() -> None:
    raw = load(SNAPSHOTS / "train-varlen.pickle.gz")
    file = json.loads(json.dumps(perfetto(explained(raw), "snapshot")))
    needed = {
        "M": {"name", "pid", "args"},
        "C": {"name", "pid", "ts", "args"},
        "i": {"name", "pid", "ts", "s"},
        "b": {"name", "pid", "tid", "ts", "cat", "id", "args"},
        "e": {"name", "pid", "tid", "ts", "cat", "id"},
    }
    for row in file["traceEvents"]:
        assert needed[row["ph"]] <= row.keys()
    begins = {row["id"]: row["ts"] for row in file["traceEvents"] if row["ph"] == "b"}
    ends = {row["id"]: row["ts"] for row in file["traceEvents"] if row["ph"] == "e"}
    assert len(begins) == MOST_BLOCKS
    assert begins.keys() == ends.keys()
    assert all(begins[block] <= ends[block] for block in begins)


def test_perfetto_marks_moments_and_calls() -> None:
    process = Process()
    process.free(process.malloc(64 * MIB, 1))
    process.empty_cache()
    process.malloc(30 * MIB, 2)
    raw = process.snapshot()
    file = perfetto(explained(raw), "snapshot")
    names = [row["name"] for row in file["traceEvents"] if row["ph"] == "i"]
    assert sorted(names) == ["empty_cache", "most active memory", "worst moment"]
    block = next(row for row in file["traceEvents"] if row["ph"] == "b")
    assert block["args"]["bytes"] == 64 * MIB
    assert "/job/train.py:1 step" in block["args"]["stack"]


def test_trace_without_times_counts_events(golden_case: GoldenCase) -> None:
    file = perfetto(explained(golden_case.raw), "case")
    assert max(row.get("ts", 0) for row in file["traceEvents"]) < len(golden_case.raw["events"])
