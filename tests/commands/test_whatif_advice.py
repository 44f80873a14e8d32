"""The advice of `gpufrag whatif`: a line to paste into a shell, supported by the trace."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers import SNAPSHOTS, TESTS, golden_case_named

GROWTH = TESTS / "fixtures" / "whatif" / "kv-growth.json.gz"
KV = TESTS / "golden" / "kv-default.json.gz"
LATE = SNAPSHOTS / "train-varlen.pickle.gz"
EXPANDABLE = "expandable_segments:True"


def changed(folder: Path, **changes: Any) -> Path:
    file = folder / "case.json"
    file.write_text(json.dumps({**golden_case_named("kv-default").raw, **changes}))
    return file


def with_conf(folder: Path, conf: str) -> Path:
    return changed(folder, settings={"PYTORCH_CUDA_ALLOC_CONF": conf})


def test_advice_has_export_savings_and_risks(cli) -> None:
    lines = cli.text("whatif", GROWTH).splitlines()
    at = lines.index(f"export PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}")
    assert "saves 374 MiB of peak reserved memory" in lines[at + 1]
    assert "CUDA IPC" in lines[at + 2]


def test_setting_that_saves_nothing_is_not_advised(cli) -> None:
    call = ("whatif", GROWTH, "--settings", "max_split_size_mb:64")
    assert "keep the recorded setting" in cli.text(*call)
    advice = cli.device(*call)["advice"]
    assert (advice["conf"], advice["change"], advice["saves_bytes"]) == ("", False, 0)


def test_shell_accepts_the_export_line(cli, tmp_path: Path) -> None:
    conf = "roundup_power2_divisions:[16:4,>:8]"
    lines = cli.text("whatif", KV, "--settings", conf).splitlines()
    line = next(line for line in lines if line.startswith("export"))
    script = f'{line}\nprintf %s "$PYTORCH_CUDA_ALLOC_CONF"'
    ran = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, os.listdir(tmp_path)) == (conf, [])


def test_torch_defaults_are_tried_and_advised(cli) -> None:
    file = TESTS / "golden" / "train-cap4-maxsplit64.json.gz"
    assert "" in [candidate["conf"] for candidate in cli.device("whatif", file)["candidates"]]
    assert "unset PYTORCH_CUDA_ALLOC_CONF" in cli.text("whatif", file, "--settings", "").splitlines()


def test_options_without_layout_stay_in_the_advice(cli, tmp_path: Path) -> None:
    file = with_conf(tmp_path, "max_split_size_mb:512,release_lock_on_cudamalloc:True")
    assert cli.device("whatif", file)["advice"]["conf"] == f"{EXPANDABLE},release_lock_on_cudamalloc:True"


def test_unknown_setting_stays_with_a_note(cli, tmp_path: Path) -> None:
    file = with_conf(tmp_path, "max_split_size_mb:512,future_option:True")
    assert cli.device("whatif", file)["advice"]["conf"] == f"{EXPANDABLE},future_option:True"
    assert "unknown setting in the recording: future_option:True" in " ".join(cli.text("whatif", file).split())


def test_conf_from_a_file_cannot_move_the_cursor(cli, tmp_path: Path) -> None:
    text = cli.text("whatif", with_conf(tmp_path, "\x1b[2Jred:1\n"), "--settings", EXPANDABLE)
    assert "?[2Jred:1?" in text
    assert "\x1b" not in text


def test_late_trace_is_compared_without_its_cache(cli) -> None:
    found = cli.device("whatif", LATE)
    first, again, *others = found["candidates"]
    assert (first["recorded"], first["packed"], again["recorded"], again["packed"]) == (True, False, True, True)
    best = min(candidate["peak_reserved"] for candidate in others if candidate["packed"])
    assert found["advice"]["saves_bytes"] == again["peak_reserved"] - best
    assert first["peak_reserved"] > 1.5 * again["peak_reserved"]  # 12 GiB of cache that no setting begins with


def test_late_trace_is_compared_with_itself_after_empty_cache(cli) -> None:
    first, *others = cli.device("whatif", LATE, "--smallest-limit")["candidates"]
    (emptied,) = [candidate for candidate in others if candidate["empties_cache"]]
    assert (emptied["recorded"], emptied["packed"]) == (True, False)
    assert first["peak_active"] <= emptied["smallest_limit"] <= first["smallest_limit"]
    assert "  recorded, empty_cache" in cli.text("whatif", LATE)


def test_anchor_is_advised_with_its_command_and_risk(cli) -> None:
    lines = cli.text("whatif", GROWTH.with_name("train-varying.json.gz")).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("gpufrag run --anchor "))
    size = lines[at].split()[3]
    assert lines[at - 1] == "unset PYTORCH_CUDA_ALLOC_CONF"
    assert lines[at] == f"gpufrag run --anchor {size} -- CMD"
    assert any(line.startswith(f"  --anchor {size} ") for line in lines)
    assert "other processes and libraries cannot use the anchor's memory" in " ".join(lines)


def test_one_anchor_is_compared_and_none_with_given_settings(cli) -> None:
    """The best of the tried ones."""
    assert sum(candidate["anchor"] > 0 for candidate in cli.device("whatif", GROWTH)["candidates"]) == 1
    given = cli.device("whatif", GROWTH, "--settings", EXPANDABLE)["candidates"]
    assert not any(candidate["anchor"] or candidate["empties_cache"] for candidate in given)


@pytest.mark.parametrize(("flags", "count"), [((), 0), (("--smallest-limit",), 1)])
def test_anchor_above_the_limit_is_compared_only_in_a_search(cli, flags: tuple[str, ...], count: int) -> None:
    """Under the limit, the agent does not reserve it."""
    candidates = cli.device("whatif", GROWTH, "--limit", "40MiB", *flags)["candidates"]
    assert sum(candidate["anchor"] > 0 for candidate in candidates) == count


def test_smallest_limit_as_recorded_starts_from_the_recorded_heap(cli) -> None:
    first, again = cli.device("whatif", LATE, "--settings", "", "--smallest-limit")["candidates"]
    assert first["smallest_limit"] >= first["peak_active"], "from its own heap"
    assert again["smallest_limit"] >= again["peak_active"]


def test_equal_settings_give_no_advice(cli) -> None:
    text = cli.text("whatif", KV, "--limit", "1MiB")
    assert "keep the recorded setting" in text
    assert "requests fail under every tested setting" in text
    assert "PYTORCH_CUDA_ALLOC_CONF" not in text


def test_failing_run_saves_nothing(cli) -> None:
    call = ("whatif", KV, "--settings", EXPANDABLE, "--limit", "200MiB", "--smallest-limit")
    found = cli.device(*call)
    assert all(candidate["failed"] for candidate in found["candidates"])
    assert (found["advice"]["saves_bytes"], found["advice"]["enough"]) == (None, False)
    taken = next(one for one in found["candidates"] if one["conf"] == found["advice"]["conf"])
    assert taken["smallest_limit"] == min(one["smallest_limit"] for one in found["candidates"])
    text = cli.text(*call)
    assert "saves" not in text.replace("none of the others saves", "")
    assert "requests fail under every tested setting: the recommended one needs a limit of" in text


def test_smallest_limit_is_at_most_a_sufficient_one(cli) -> None:
    case = TESTS / "golden" / "cache-default.json.gz"
    call = ("whatif", case, "--settings", EXPANDABLE, "--limit", "10GiB", "--smallest-limit")
    first, *_ = cli.device(*call)["candidates"]
    assert first["failed"] == 0
    assert first["smallest_limit"] <= 10 << 30


def test_smallest_limit_ignores_the_limit(cli) -> None:
    call = ("whatif", TESTS / "golden" / "churn-default.json.gz", "--settings", EXPANDABLE, "--smallest-limit")
    found = [cli.device(*call, *more)["candidates"] for more in ((), ("--limit", "2MiB"))]
    assert [c["smallest_limit"] for c in found[0]] == [c["smallest_limit"] for c in found[1]] != [None, None]


def test_memory_fraction_is_a_limit(cli) -> None:
    unlimited = TESTS / "golden" / "train-default.json.gz"
    found = cli.device("whatif", unlimited, "--settings", "per_process_memory_fraction:0.01")
    total = golden_case_named("train-default").raw["driver_total"]
    assert [one["limit"] for one in found["candidates"]] == [None, round(0.01 * total)]


def test_fraction_of_unknown_device_adds_a_note(cli) -> None:
    notes = cli.device("whatif", LATE, "--settings", "per_process_memory_fraction:0.5")["notes"]
    assert any("does nothing here without --driver-size" in note for note in notes)


def test_device_smaller_than_a_request_fails(cli, tmp_path: Path) -> None:
    file = changed(tmp_path, driver_total=1024, driver_free=None, driver_free_before=None)
    (_, other) = cli.device("whatif", file, "--settings", EXPANDABLE)["candidates"]
    assert other["failed"] > 0


def test_negative_free_memory_is_refused(cli, tmp_path: Path) -> None:
    code, error = cli.refusal("whatif", changed(tmp_path, driver_free_before=-5))
    assert (code, "driver_free_before is not a size" in error) == (1, True)


def test_trace_shared_by_many_devices_is_refused(cli, tmp_path: Path) -> None:
    """By references a pickle of some kilobytes would hold a hundred million events."""
    file = tmp_path / "shared.pickle"
    entry = {"action": "alloc", "addr": 512, "size": 1, "stream": 0}
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]] * 100}, protocol=4))
    code, error = cli.refusal("whatif", file)
    assert (code, "two of its traces are one object" in error) == (1, True)
