"""`gpufrag whatif`: the comparison, and incomplete traces."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufrag.reports import terminal
from helpers import SNAPSHOTS, TESTS, golden_case_named

KV = TESTS / "fixtures" / "whatif" / "kv-growth.json.gz"
STREAMS = TESTS / "golden" / "streams-default.json.gz"
CAPPED = TESTS / "golden" / "train-cap4.json.gz"
LATE = SNAPSHOTS / "train-varlen.pickle.gz"
EXPANDABLE = "expandable_segments:True"


def snapshot(name: str, *, part: float = 1.0, device: int = 0) -> dict[str, Any]:
    """A golden case as torch pickles it, with the last `part` of its trace, in a process of more than one device."""
    raw = golden_case_named(name).raw
    trace = [dict(zip(raw["events_columns"], row)) for row in raw["events"]]
    trace = trace[round((1 - part) * len(trace)) :]
    return {
        "segments": [segment | {"device": device} for segment in raw["segments"]],
        "device_traces": [[] for _ in range(device)] + [trace],
        "allocator_settings": raw["settings"],
    }


def two_devices() -> dict[str, Any]:
    one, other = snapshot("streams-default"), snapshot("churn-expandable", device=2)
    traces = [*one["device_traces"], [], other["device_traces"][2]]
    return {**one, "segments": one["segments"] + other["segments"], "device_traces": traces}


def test_recorded_setting_comes_first_as_recorded(cli) -> None:
    recorded, *others = cli.device("whatif", CAPPED)["candidates"]
    stats = golden_case_named("train-cap4").raw["stats"]
    assert recorded["recorded"]
    assert recorded["same_end"]
    assert recorded["peak_reserved"] == stats["reserved_bytes.all.peak"]
    assert (recorded["alloc_retries"], recorded["ooms"]) == (stats["num_alloc_retries"], stats["num_ooms"])
    assert [other["recorded"] for other in others] == [False] * 6


def test_other_setting_has_its_real_peak(cli) -> None:
    (_, other) = cli.device("whatif", KV, "--settings", EXPANDABLE)["candidates"]
    assert (other["conf"], other["peak_reserved"]) == (EXPANDABLE, 462 << 20)  # tests/fixtures/whatif/peaks.json


def test_small_limit_shows_failed_requests(cli) -> None:
    found = cli.device("whatif", KV, "--limit", "456MiB", "--settings", EXPANDABLE)
    recorded, other = found["candidates"]
    assert found["limit"] == 456 << 20
    assert recorded["failed"] > other["failed"] == 0
    assert found["advice"]["conf"] == EXPANDABLE


def test_smallest_limit_suffices(cli) -> None:
    call = ("whatif", STREAMS, "--settings", EXPANDABLE)
    smallest = cli.device(*call, "--smallest-limit")["candidates"][1]["smallest_limit"]
    for limit, fails in ((smallest, False), (smallest - (2 << 20), True)):
        assert (cli.device(*call, "--limit", limit)["candidates"][1]["failed"] > 0) is fails


@pytest.mark.parametrize(
    "words",
    [
        [CAPPED, "--smallest-limit"],
        [LATE],
        [STREAMS, "--settings", "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"],
    ],
)
def test_table_fits_a_screen(cli, words: list[object]) -> None:
    assert max(len(line) for line in cli.text("whatif", *words).splitlines()) <= 120


def test_long_setting_has_an_option_per_line(cli) -> None:
    lines = cli.text("whatif", STREAMS, "--settings", f"{EXPANDABLE},roundup_power2_divisions:8").splitlines()
    assert lines[lines.index("expandable_segments:True,") + 1].startswith("  roundup_power2_divisions:8  ")


def test_late_trace_notes_older_blocks(cli) -> None:
    found = cli.device("whatif", LATE, "--settings", EXPANDABLE)
    assert (found["older_blocks"], found["trace_is_complete"]) == (591, False)
    assert found["notes"][0].startswith("591 blocks are older than the trace")
    assert found["candidates"][0]["same_end"]


@pytest.mark.parametrize("part", [0.5, 0.1])
def test_end_of_a_trace_ends_as_recorded(cli, save, part: float) -> None:
    found = cli.device("whatif", save(snapshot("streams-expandable", part=part)), "--settings", EXPANDABLE)
    assert found["older_blocks"] > 0
    assert found["candidates"][0]["same_end"]


def test_every_device_is_compared(cli, save) -> None:
    call = ("whatif", save(two_devices()), "--settings", EXPANDABLE)
    found = cli.json(*call)["devices"]
    assert [device["device"] for device in found] == [0, 2]
    assert found[0]["candidates"][0]["peak_reserved"] != found[1]["candidates"][0]["peak_reserved"]
    heads = [line.split(":")[0] for line in cli.text(*call).splitlines() if ", device " in line]
    assert heads == ["snapshot-0.pickle, device 0", "snapshot-0.pickle, device 2"]
    assert cli.device(*call, "--device", 2)["device"] == 2
    assert cli.refusal(*call, "--device", 1)[1].endswith("holds traces of device 0, 2\n")


def test_unreplayable_device_leaves_the_others(cli, save) -> None:
    broken = two_devices()
    broken["device_traces"][2] = list(broken["device_traces"][0])
    code, out, err = cli.run("whatif", save(broken), "--settings", EXPANDABLE, "--json")
    assert [device["device"] for device in json.loads(out)["devices"]] == [0]
    assert (code, "device 2: event" in err) == (1, True)


def old(entry: dict[str, Any]) -> dict[str, Any]:
    """The form of torch 2.1."""
    where = {"device_free": 1 << 30} if entry["action"] == "oom" else {"addr": entry["addr"]}
    return {"action": entry["action"], **where, "size": entry["size"], "stream": entry["stream"]}


def new(entry: dict[str, Any]) -> dict[str, Any]:
    """The form of torch 2.14."""
    context = {"time_us": 7, "pool_id": (0, 0), "compile_context": "N/A", "user_metadata": "", "frames": []}
    return {**old(entry), **context}


@pytest.mark.parametrize("version", [old, new])
def test_trace_of_every_version_is_read(cli, save, version: Any) -> None:
    content = snapshot("churn-default")
    others = [{"action": name, "addr": 0, "size": 0, "stream": 0} for name in ("snapshot", "annotate", "user_defined")]
    content["device_traces"] = [[*others, *map(version, content["device_traces"][0])]]
    limit = golden_case_named("churn-default").raw["cap_bytes"]
    found = cli.device("whatif", save(content), "--settings", EXPANDABLE, "--recorded-limit", limit)
    assert found["candidates"][0]["same_end"]


@pytest.mark.parametrize("left_out", ["free_requested", "free_completed"])
def test_trace_without_an_action_is_compared(cli, save, left_out: str) -> None:
    content = snapshot("streams-default")
    content["device_traces"] = [[entry for entry in content["device_traces"][0] if entry["action"] != left_out]]
    assert cli.device("whatif", save(content), "--settings", EXPANDABLE)["candidates"][0]["same_end"]


def test_gzipped_pickle_is_read(cli, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle.gz"
    file.write_bytes(gzip.compress(pickle.dumps(snapshot("streams-default"), 4)))
    assert cli.device("whatif", file, "--settings", EXPANDABLE)["trace_is_complete"]


def test_progress_is_shown_on_a_terminal(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_AFTER", 0.0)
    monkeypatch.setattr(terminal, "EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = cli.run("whatif", STREAMS, "--settings", EXPANDABLE, "--smallest-limit")
    assert (code, "2 settings  " in err) == (0, True)


def test_stacks_distinguish_empty_cache_from_flush(cli, save) -> None:
    """At the limit both look alike in a trace without stacks."""
    content, limit = snapshot("cache-default"), golden_case_named("cache-default").raw["cap_bytes"]
    words = ("--settings", EXPANDABLE, "--recorded-limit", limit)
    doubt = "flush or empty_cache: "
    assert any(doubt in note for note in cli.device("whatif", save(content), *words)["notes"])
    for entry in content["device_traces"][0]:
        entry["frames"] = [{"name": "empty_cache", "filename": "memory.py", "line": 1}]
    assert not any(doubt in note for note in cli.device("whatif", save(content), *words)["notes"])
