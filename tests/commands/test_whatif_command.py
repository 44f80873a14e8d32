"""`gpufrag whatif`: the comparison, the advice, and incomplete traces."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufrag.cli import main
from gpufrag.reports import terminal
from helpers import SNAPSHOTS, TESTS, golden_case_named
from whatif_calls import EXPANDABLE, LATE, printed, record

KV = str(TESTS / "fixtures" / "whatif" / "kv-growth.json.gz")
STREAMS = str(TESTS / "golden" / "streams-default.json.gz")
CAPPED = str(TESTS / "golden" / "train-cap4.json.gz")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["whatif", *arguments])
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return code, shown.err


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


@pytest.fixture
def pickled(tmp_path: Path) -> Callable[[Any], str]:
    def write(content: Any) -> str:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(content, 4))
        return str(path)

    return write


def test_the_recorded_setting_comes_first_and_is_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    recorded, *others = record(capsys, CAPPED)["candidates"]
    stats = golden_case_named("train-cap4").raw["stats"]
    assert recorded["recorded"]
    assert recorded["same_end"]
    assert recorded["peak_reserved"] == stats["reserved_bytes.all.peak"]
    assert (recorded["alloc_retries"], recorded["ooms"]) == (stats["num_alloc_retries"], stats["num_ooms"])
    assert [other["recorded"] for other in others] == [False] * 5


def test_another_setting_is_what_happened_under_it(capsys: pytest.CaptureFixture[str]) -> None:
    (_, other) = record(capsys, KV, "--settings", EXPANDABLE)["candidates"]
    assert (other["conf"], other["peak_reserved"]) == (EXPANDABLE, 462 << 20)  # tests/fixtures/whatif/peaks.json


def test_the_advice_is_a_line_to_export_what_it_saves_and_its_risks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, KV).splitlines()
    at = lines.index(f"export PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}")
    assert "saves 374 MiB of peak reserved memory" in lines[at + 1]
    assert "CUDA IPC" in lines[at + 2]


def test_the_recorded_setting_stays_where_nothing_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    assert "keep the recorded setting" in printed(capsys, KV, "--settings", "max_split_size_mb:64")
    advice = record(capsys, KV, "--settings", "max_split_size_mb:64")["advice"]
    assert (advice["conf"], advice["change"], advice["saves_bytes"]) == ("", False, 0)


def test_too_small_limit_shows_failed_requests(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, KV, "--limit", "456MiB", "--settings", EXPANDABLE)
    recorded, other = found["candidates"]
    assert found["limit"] == 456 << 20
    assert recorded["failed"] > other["failed"] == 0
    assert found["advice"]["conf"] == EXPANDABLE


def test_the_smallest_limit_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    smallest = record(capsys, STREAMS, "--settings", EXPANDABLE, "--smallest-limit")["candidates"][1]["smallest_limit"]
    for limit, fails in ((smallest, False), (smallest - (2 << 20), True)):
        again = record(capsys, STREAMS, "--settings", EXPANDABLE, "--limit", str(limit))
        assert (again["candidates"][1]["failed"] > 0) is fails


@pytest.mark.parametrize(
    "arguments",
    [
        [CAPPED, "--smallest-limit"],
        [LATE],
        [STREAMS, "--settings", "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"],
    ],
)
def test_the_page_fits_a_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert max(len(line) for line in printed(capsys, *arguments).splitlines()) <= 120


def test_an_option_of_a_long_setting_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, STREAMS, "--settings", "expandable_segments:True,roundup_power2_divisions:8").splitlines()
    at = lines.index("expandable_segments:True,")
    assert lines[at + 1].startswith("  roundup_power2_divisions:8  ")


def test_a_trace_that_lost_its_beginning_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, LATE, "--settings", EXPANDABLE)
    assert (found["older_blocks"], found["trace_is_complete"]) == (591, False)
    assert found["notes"][0].startswith("591 blocks were allocated before the trace")
    assert found["candidates"][0]["same_end"]


@pytest.mark.parametrize("part", [0.5, 0.1])
def test_the_end_of_a_trace_begins_with_what_was_there(
    part: float, pickled: Callable[[Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = record(capsys, pickled(snapshot("streams-expandable", part=part)), "--settings", EXPANDABLE)
    assert found["older_blocks"] > 0
    assert found["candidates"][0]["same_end"]


def two_devices() -> dict[str, Any]:
    one, other = snapshot("streams-default"), snapshot("churn-expandable", device=2)
    traces = [*one["device_traces"], [], other["device_traces"][2]]
    return {**one, "segments": one["segments"] + other["segments"], "device_traces": traces}


def test_each_device_of_a_snapshot_is_compared(
    pickled: Callable[[Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = pickled(two_devices())
    found = json.loads(printed(capsys, file, "--json", "--settings", EXPANDABLE))["devices"]
    assert [device["device"] for device in found] == [0, 2]
    assert found[0]["candidates"][0]["peak_reserved"] != found[1]["candidates"][0]["peak_reserved"]
    lines = printed(capsys, file, "--settings", EXPANDABLE).splitlines()
    assert [line.split(":")[0] for line in lines if ", device " in line] == [
        "snapshot.pickle, device 0",
        "snapshot.pickle, device 2",
    ]


def test_one_device_can_be_chosen(pickled: Callable[[Any], str], capsys: pytest.CaptureFixture[str]) -> None:
    file = pickled(two_devices())
    assert record(capsys, file, "--device", "2", "--settings", EXPANDABLE)["device"] == 2
    assert refusal(capsys, file, "--device", "1")[1].strip().endswith("holds traces of device 0, 2")


def test_a_device_that_cannot_be_replayed_leaves_the_others(
    pickled: Callable[[Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = two_devices()
    broken["device_traces"][2] = list(broken["device_traces"][0])
    assert main(["whatif", pickled(broken), "--settings", EXPANDABLE, "--json"]) == 1
    shown = capsys.readouterr()
    assert [device["device"] for device in json.loads(shown.out)["devices"]] == [0]
    assert "device 2: event" in shown.err


def old(entry: dict[str, Any]) -> dict[str, Any]:
    """The form of torch 2.1."""
    where = {"device_free": 1 << 30} if entry["action"] == "oom" else {"addr": entry["addr"]}
    return {"action": entry["action"], **where, "size": entry["size"], "stream": entry["stream"]}


def new(entry: dict[str, Any]) -> dict[str, Any]:
    """The form of torch 2.14."""
    context = {"time_us": 7, "pool_id": (0, 0), "compile_context": "N/A", "user_metadata": "", "frames": []}
    return {**old(entry), **context}


@pytest.mark.parametrize("version", [old, new])
def test_traces_of_all_versions_are_read(
    version: Callable[[dict[str, Any]], dict[str, Any]],
    pickled: Callable[[Any], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = snapshot("churn-default")
    others = [{"action": name, "addr": 0, "size": 0, "stream": 0} for name in ("snapshot", "annotate", "user_defined")]
    content["device_traces"] = [[*others, *map(version, content["device_traces"][0])]]
    limit = str(golden_case_named("churn-default").raw["cap_bytes"])
    found = record(capsys, pickled(content), "--settings", EXPANDABLE, "--recorded-limit", limit)
    assert found["candidates"][0]["same_end"]


@pytest.mark.parametrize("left_out", ["free_requested", "free_completed"])
def test_trace_without_an_action_can_be_compared(
    left_out: str, pickled: Callable[[Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    content = snapshot("streams-default")
    content["device_traces"] = [[entry for entry in content["device_traces"][0] if entry["action"] != left_out]]
    assert record(capsys, pickled(content), "--settings", EXPANDABLE)["candidates"][0]["same_end"]


def test_a_gzipped_pickle_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "snapshot.pickle.gz"
    file.write_bytes(gzip.compress(pickle.dumps(snapshot("streams-default"), 4)))
    assert record(capsys, str(file), "--settings", EXPANDABLE)["trace_is_complete"]


@pytest.mark.parametrize(("kept", "message"), [(1000, "cut off or damaged"), (0, "is empty")])
def test_truncated_file_is_an_error(
    kept: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.pickle.gz"
    file.write_bytes(Path(LATE).read_bytes()[:kept])
    code, text = refusal(capsys, str(file))
    assert (code, message in text) == (1, True), text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([str(SNAPSHOTS / "default-0.pickle.gz")], 1, "holds no history, only segments, which gpufrag measure reads"),
        ([KV, "--settings", "colour:red"], 2, "torch has no allocator setting 'colour'"),
        ([KV, "--limit", "lots"], 2, "'lots' is not a size"),
        (["nowhere.pickle"], 1, "nowhere.pickle"),
    ],
)
def test_unanswerable_call_is_a_one_line_error(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = refusal(capsys, *arguments)
    assert (found, message in text) == (code, True), text


def test_progress_is_shown_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_AFTER", 0.0)
    monkeypatch.setattr(terminal, "EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["whatif", STREAMS, "--settings", EXPANDABLE, "--smallest-limit"]) == 0
    shown = capsys.readouterr().err
    assert "2 settings  " in shown


def test_stacks_tell_an_empty_cache(pickled: Callable[[Any], str], capsys: pytest.CaptureFixture[str]) -> None:
    """At the limit a flush and an empty_cache look alike; but not to a trace with stacks."""
    content, limit = snapshot("cache-default"), str(golden_case_named("cache-default").raw["cap_bytes"])
    arguments = ("--settings", EXPANDABLE, "--recorded-limit", limit)
    notes = record(capsys, pickled(content), *arguments)["notes"]
    assert any("flush or empty_cache: " in note for note in notes)
    for entry in content["device_traces"][0]:
        entry["frames"] = [{"name": "empty_cache", "filename": "memory.py", "line": 1}]
    notes = record(capsys, pickled(content), *arguments)["notes"]
    assert not any("flush or empty_cache: " in note for note in notes)
