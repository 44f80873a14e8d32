"""Calls of the commands that read snapshots: a mistake is one line on stderr, and nothing is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import SNAPSHOTS, TESTS, golden_case_named

CASE = str(TESTS / "golden" / "churn-default.json.gz")
TORCH = str(SNAPSHOTS / "default-0.pickle.gz")
READERS = ("measure", "explain", "replay", "whatif")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        *((f"{command} /nowhere/x", 1, "/nowhere/x: no such file") for command in (*READERS, "timeline", "fit")),
        *((command, 2, "the following arguments are required: ") for command in (*READERS, "fit")),
        *((f"{command} {CASE} --limit lots", 2, "'lots' is not a size") for command in READERS),
        (f"measure {__file__}", 1, "neither a pickle nor JSON"),
        (f"diff {__file__} {CASE}", 1, "neither a pickle nor JSON"),
        (f"measure {TORCH} --device 3", 2, "--device 3: "),
        (f"explain {CASE} --device 3", 2, "--device 3: the file has device 0"),
        (f"diff {CASE} {CASE} --device 1", 2, "the snapshots have no device 1 in common"),
        (f"whatif {CASE} --device 1", 2, "holds the trace of one device"),
        (f"measure {TORCH} --limit 4G", 2, "argument --limit: '4G' is ambiguous"),
        (f"measure {TORCH} --limit 40", 2, "argument --limit: '40' is only 40 B; add a unit, as in 40GiB"),
        (f"measure {CASE} --driver-free 200GiB", 2, "--driver-free (200 GiB) is larger than the device (140 GiB)"),
        *((f"{c} {CASE} --driver-free 2GiB --driver-size 1GiB", 2, "--driver-free (2.00 GiB) is larger than the device")
          for c in ("measure", "explain", "whatif")),
        (f"measure {TORCH} --stream one", 2, "argument --stream: 'one' is not a whole number of at least 0"),
        (f"measure {TORCH} --stream -1", 2, "argument --stream: '-1' is not a whole number of at least 0"),
        (f"measure {TORCH} --device -1", 2, "argument --device: '-1' is not a whole number of at least 0"),
        (f"measure {TORCH} --alloc-conf max_split_size_mb:lots", 2, "allocator setting max_split_size_mb"),
        (f"measure {TORCH} --alloc-conf expandable_segments=True", 2, "is not of the form key:value"),
        (f"measure {TORCH} --alloc-conf foo:bar", 2, "torch has no allocator setting 'foo'"),
        (f"replay {CASE} --settings colour:red", 2, "torch has no allocator setting 'colour'"),
        (f"replay {CASE} --settings max_split_size_mb:1", 2, "must be 20 or more"),
        (f"whatif {CASE} --settings colour:red", 2, "torch has no allocator setting 'colour'"),
        (f"whatif {CASE} --settings backend:cudaMallocAsync", 2, "supports only native"),
        (f"timeline {TORCH}", 1, "has no history; call torch.cuda.memory._record"),
        (f"replay {TORCH}", 1, "has no history"),
        (f"whatif {TORCH}", 1, "has no history"),
        (f"fit {TORCH}", 1, "_record_memory_history"),
    ],
)  # fmt: skip
def test_bad_call_is_one_line(cli, words: str, code: int, text: str) -> None:
    found, error = cli.refusal(*words.split())
    assert found == code
    assert text in error


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"events": 7}, "events and events_columns must be lists"),
        ({"events": [["alloc", 1, 2]]}, "event 0 is not a row"),
        ({"events": [["alloc", 4096, 512, 0]]}, "event 0 allocates 0x1000"),
    ],
)
def test_broken_trace_error_names_the_file(cli, tmp_path: Path, change: dict[str, Any], text: str) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({**golden_case_named("churn-default").raw, **change}))
    code, error = cli.refusal("replay", file)
    assert (code, text in error, "case.json" in error) == (1, True, True), error


@pytest.mark.parametrize(("kept", "text"), [(1000, "cut off or damaged"), (0, "is empty")])
def test_truncated_file_is_refused(cli, tmp_path: Path, kept: int, text: str) -> None:
    file = tmp_path / "cut.pickle.gz"
    file.write_bytes(Path(TORCH).read_bytes()[:kept])
    code, error = cli.refusal("whatif", file)
    assert (code, text in error) == (1, True), error
