"""`gpufrag replay`: its output, and its JSON as input of `measure`."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import SNAPSHOTS, TESTS, GoldenCase, golden_case_named

GOLDEN = TESTS / "golden"
CASE = GOLDEN / "churn-default.json.gz"


@pytest.mark.parametrize("golden_case", ["churn-default", "streams-expandable", "train-cap4"], indirect=True)
def test_recorded_case_ends_as_recorded(golden_case: GoldenCase, cli) -> None:
    found = cli.json("replay", GOLDEN / f"{golden_case.name}.json.gz")
    stats = golden_case.raw["stats"]
    assert found["ends_as_recorded"] is True
    assert found["difference"] is None
    assert found["counters"]["alloc_retries"] == stats["num_alloc_retries"]
    assert found["pools"]["large"]["active"] == stats["active_bytes.large_pool.current"]
    assert found["peak_reserved"] == stats["reserved_bytes.all.peak"]


def test_json_is_a_snapshot(cli, tmp_path: Path) -> None:
    (tmp_path / "end.json").write_text(cli.text("replay", CASE, "--json"))
    devices = [cli.device("measure", file) for file in (tmp_path / "end.json", CASE)]
    first, second = ({name: one[name] for name in ("reserved", "stranded", "limit", "pools")} for one in devices)
    assert first == second


def test_memory_fraction_is_a_limit(cli) -> None:
    call = ("replay", GOLDEN / "train-default.json.gz", "--settings", "per_process_memory_fraction:0.01")
    most = round(0.01 * golden_case_named("train-default").raw["driver_total"])
    assert cli.json(*call)["cap_bytes"] == most
    assert "and a limit of 1.40 GiB" in cli.text(*call).partition("\n")[0]


def test_other_settings_and_limit_change_the_end(cli) -> None:
    found = cli.json("replay", CASE, "--settings", "expandable_segments:True", "--limit", "4GiB")
    assert found["ends_as_recorded"] is False
    assert found["difference"] is None  # only the recorded settings are compared with the recording
    assert found["cap_bytes"] == 4 << 30
    assert found["newly_failed"] > 0
    assert all(segment["is_expandable"] for segment in found["segments"])


def test_text_lists_quantities(cli) -> None:
    lines = [line.split() for line in cli.text("replay", CASE).splitlines()]
    stats = golden_case_named("churn-default").raw["stats"]
    assert ["peak_reserved", "8.00", "GiB", f"{stats['reserved_bytes.all.peak']:,}"] in lines
    assert ["device_frees", "22"] in lines
    assert ["ends_as_recorded", "yes"] in lines


def test_late_trace_starts_from_the_older_heap(cli) -> None:
    found = cli.json("replay", SNAPSHOTS / "train-varlen.pickle.gz")
    assert found["ends_as_recorded"] is True
    assert found["counters"]["device_allocs"] == 0


def test_difference_and_doubts_are_reported(cli) -> None:
    """With a limit that is too low, the replay cannot do what was recorded."""
    call = ("replay", GOLDEN / "churn-default.json.gz", "--recorded-limit", "1GiB")
    found = cli.json(*call)
    assert "in the recording" in found["difference"]
    assert sum(found["doubts"].values()) > 0
    text = " ".join(cli.text(*call).split())
    assert f"note: the replay differs from the recording: {found['difference']}" in text
    doubts = ", ".join(f"{kind}: {count:,}" for kind, count in found["doubts"].items())
    assert f"note: the trace does not always show what the allocator did ({doubts}): " in text
    assert f"note: the difference can come from the pools of {found['inferred_pools']} segments, which are" in text
