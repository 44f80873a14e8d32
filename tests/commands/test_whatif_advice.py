"""The advice of `gpufrag whatif`: a line to paste into a shell, supported by the trace."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufrag.cli import main
from helpers import TESTS, golden_case_named
from whatif_calls import EXPANDABLE, LATE, printed, record

KV = str(TESTS / "golden" / "kv-default.json.gz")
UNLIMITED = str(TESTS / "golden" / "train-default.json.gz")


def changed(tmp_path: Path, name: str, **changes: Any) -> str:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({**golden_case_named(name).raw, **changes}))
    return str(file)


def test_a_shell_takes_the_line_as_it_stands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    conf = "roundup_power2_divisions:[16:4,>:8]"
    lines = printed(capsys, KV, "--settings", conf).splitlines()
    line = next(line for line in lines if line.startswith("export"))
    script = f'{line}\nprintf %s "$PYTORCH_CUDA_ALLOC_CONF"'
    ran = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, os.listdir(tmp_path)) == (conf, [])


def test_torchs_defaults_are_tried_and_advised(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(TESTS / "golden" / "train-cap4-maxsplit64.json.gz")
    assert "" in [candidate["conf"] for candidate in record(capsys, file)["candidates"]]
    assert "unset PYTORCH_CUDA_ALLOC_CONF" in printed(capsys, file, "--settings", "").splitlines()


def test_options_that_lay_out_no_memory_stay_in_the_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,release_lock_on_cudamalloc:True"}
    advice = record(capsys, changed(tmp_path, "kv-default", settings=settings))["advice"]
    assert advice["conf"] == f"{EXPANDABLE},release_lock_on_cudamalloc:True"


def test_a_late_trace_is_advised_by_what_all_settings_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, LATE)
    first, again, *others = found["candidates"]
    assert (first["recorded"], first["packed"], again["recorded"], again["packed"]) == (True, False, True, True)
    best = min(candidate["peak_reserved"] for candidate in others)
    assert found["advice"]["saves_bytes"] == again["peak_reserved"] - best
    assert first["peak_reserved"] > 1.5 * again["peak_reserved"]  # 12 GiB of cache that no setting begins with


def test_a_late_trace_has_no_smallest_limit_with_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    first, again = record(capsys, LATE, "--settings", "", "--smallest-limit")["candidates"]
    assert first["smallest_limit"] is None
    assert again["smallest_limit"] >= again["peak_active"]


def test_nothing_is_advised_where_no_setting_differs(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, KV, "--limit", "0")
    assert "keep the recorded setting" in text
    assert "requests fail under every tested setting" in text
    assert "PYTORCH_CUDA_ALLOC_CONF" not in text


def test_a_run_that_fails_saves_nothing_and_what_would_be_enough_decides(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (KV, "--settings", EXPANDABLE, "--limit", "200MiB", "--smallest-limit")
    found = record(capsys, *asked)
    assert all(candidate["failed"] for candidate in found["candidates"])
    assert (found["advice"]["saves_bytes"], found["advice"]["enough"]) == (None, False)
    taken = next(one for one in found["candidates"] if one["conf"] == found["advice"]["conf"])
    assert taken["smallest_limit"] == min(one["smallest_limit"] for one in found["candidates"])
    text = printed(capsys, *asked)
    assert "saves" not in text.replace("none of the others saves", "")
    assert "requests fail under every tested setting: the recommended one needs a limit of" in text


def test_the_smallest_limit_is_not_above_one_that_sufficed(capsys: pytest.CaptureFixture[str]) -> None:
    case = str(TESTS / "golden" / "cache-default.json.gz")
    first, *_ = record(capsys, case, "--settings", EXPANDABLE, "--limit", "10GiB", "--smallest-limit")["candidates"]
    assert first["failed"] == 0
    assert first["smallest_limit"] <= 10 << 30


def test_a_share_of_the_device_is_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, UNLIMITED, "--settings", "per_process_memory_fraction:0.01")
    total = golden_case_named("train-default").raw["driver_total"]
    assert [one["limit"] for one in found["candidates"]] == [None, round(0.01 * total)]


def test_unknown_setting_stays_with_a_note(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,future_option:True"}
    file = changed(tmp_path, "kv-default", settings=settings)
    assert record(capsys, file)["advice"]["conf"] == f"{EXPANDABLE},future_option:True"
    assert "unknown setting in the recording: future_option:True" in " ".join(printed(capsys, file).split())


def test_the_smallest_limit_does_not_depend_on_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--settings", EXPANDABLE, "--smallest-limit")
    case = str(TESTS / "golden" / "churn-default.json.gz")
    found = [record(capsys, case, *asked, *more)["candidates"] for more in ((), ("--limit", "2MiB"))]
    assert [c["smallest_limit"] for c in found[0]] == [c["smallest_limit"] for c in found[1]] != [None, None]


def test_a_device_smaller_than_a_request_runs_out_of_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = changed(tmp_path, "kv-default", driver_total=1024, driver_free=None, driver_free_before=None)
    (_, other) = record(capsys, file, "--settings", EXPANDABLE)["candidates"]
    assert other["failed"] > 0


def test_a_conf_from_a_file_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "\x1b[2Jred:1\n"}
    text = printed(capsys, changed(tmp_path, "kv-default", settings=settings), "--settings", EXPANDABLE)
    assert "?[2Jred:1?" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--driver-free", "2GiB", "--driver-size", "1GiB"],
            "--driver-free (2.00 GiB) is larger than the device (1.00 GiB)",
        ),
        (["--device", "1"], "holds the trace of one device"),
        (["--settings", "backend:cudaMallocAsync"], "supports only native"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", KV, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_negative_size_of_free_memory_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["whatif", changed(tmp_path, "kv-default", driver_free_before=-5)]) == 1
    assert "driver_free_before is not a size" in capsys.readouterr().err


def test_one_trace_for_many_devices_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By references a pickle of some kilobytes would hold a hundred million events."""
    file = tmp_path / "shared.pickle"
    entry = {"action": "alloc", "addr": 512, "size": 1, "stream": 0}
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]] * 200}, protocol=4))
    assert main(["whatif", str(file)]) == 1
    assert "share one trace" in capsys.readouterr().err


def test_fraction_of_unknown_device_adds_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    notes = record(capsys, LATE, "--settings", "per_process_memory_fraction:0.5")["notes"]
    assert any("does nothing here without --driver-size" in note for note in notes)
