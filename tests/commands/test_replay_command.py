"""`gpufrag replay`: its output, its JSON as input of `measure`, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufrag.cli import main
from helpers import SNAPSHOTS, TESTS, GoldenCase, golden_case_named

CASE = str(TESTS / "golden" / "churn-default.json.gz")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["replay", *arguments]) == 0
    return capsys.readouterr().out


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["replay", *arguments])
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return code, shown.err


@pytest.mark.parametrize("golden_case", ["churn-default", "streams-expandable", "train-cap4"], indirect=True)
def test_a_recorded_case_ends_as_recorded(golden_case: GoldenCase, capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, str(TESTS / "golden" / f"{golden_case.name}.json.gz"))
    stats = golden_case.raw["stats"]
    assert found["ends_as_recorded"] is True
    assert found["counters"]["alloc_retries"] == stats["num_alloc_retries"]
    assert found["pools"]["large"]["active"] == stats["active_bytes.large_pool.current"]
    assert found["peak_reserved"] == stats["reserved_bytes.all.peak"]


def test_its_json_is_a_snapshot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "end.json").write_text(printed(capsys, CASE, "--json"))
    measured = []
    for file in (str(tmp_path / "end.json"), CASE):
        assert main(["measure", file, "--json"]) == 0
        (device,) = json.loads(capsys.readouterr().out)["devices"]
        measured.append({name: device[name] for name in ("reserved", "stranded", "limit", "pools")})
    assert measured[0] == measured[1]


def test_a_share_of_the_device_is_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    share = ("--settings", "per_process_memory_fraction:0.01")
    unlimited = str(TESTS / "golden" / "train-default.json.gz")
    most = round(0.01 * golden_case_named("train-default").raw["driver_total"])
    assert record(capsys, unlimited, *share)["cap_bytes"] == most
    assert "and a limit of 1.40 GiB" in printed(capsys, unlimited, *share).partition("\n")[0]


def test_other_settings_and_limits_change_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, CASE, "--settings", "expandable_segments:True", "--limit", "4GiB")
    assert found["ends_as_recorded"] is False
    assert found["cap_bytes"] == 4 << 30
    assert found["newly_failed"] > 0
    assert all(segment["is_expandable"] for segment in found["segments"])


def test_a_page_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in printed(capsys, CASE).splitlines()]
    stats = golden_case_named("churn-default").raw["stats"]
    assert ["peak_reserved", "8.00", "GiB", f"{stats['reserved_bytes.all.peak']:,}"] in lines
    assert ["device_frees", "22"] in lines
    assert ["ends_as_recorded", "yes"] in lines


def test_a_trace_that_begins_late_is_replayed_from_what_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, str(SNAPSHOTS / "train-varlen.pickle.gz"))
    assert found["ends_as_recorded"] is True
    assert found["counters"]["device_allocs"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.json"], 1, "nowhere.json"),
        ([str(SNAPSHOTS / "default-0.pickle.gz")], 1, "holds no history"),
        ([CASE, "--limit", "lots"], 2, "'lots' is not a size"),
        ([CASE, "--settings", "max_split_size_mb:1"], 2, "must be 20 or more"),
        ([CASE, "--settings", "colour:red"], 2, "torch has no allocator setting 'colour'"),
        ([], 2, "FILE"),
    ],
)
def test_unreplayable_file_is_a_one_line_error(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = refusal(capsys, *arguments)
    assert (found, message in text) == (code, True), text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"events": 7}, "events and events_columns must be lists"),
        ({"events": [["alloc", 1, 2]]}, "event 0 is not a row"),
        ({"events": [["alloc", 4096, 512, 0]]}, "event 0 allocates 0x1000"),
    ],
)
def test_broken_trace_error_names_the_file(
    change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({**golden_case_named("churn-default").raw, **change}))
    code, text = refusal(capsys, str(file))
    assert code == 1
    assert message in text
    assert "case.json" in text
