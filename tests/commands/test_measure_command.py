"""`gpufrag measure`: flags, text and JSON."""

import json
import subprocess
import sys

import pytest

from gpufrag.snapshot_file import load
from helpers import SNAPSHOTS, TESTS

CASE = TESTS / "golden" / "train-cap4.json.gz"
TORCH = SNAPSHOTS / "default-0.pickle.gz"


@pytest.fixture
def two_devices(save):
    snapshot = load(TORCH)
    segments = snapshot["segments"]
    segments += [segment | {"device": 1, "blocks": [*segment["blocks"]]} for segment in segments]
    return save(snapshot)


def test_recorded_case_needs_no_flag(cli, golden):
    device = cli.device("measure", CASE)
    raw = golden("train-cap4").raw
    assert device["limit"] == raw["cap_bytes"]
    assert 0 <= device["largest_allocatable"] - raw["largest_request_that_succeeds"] < 512


def test_memory_fraction_of_the_settings_is_the_limit(cli, save):
    snapshot = load(TORCH)
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
    call = ("measure", save(snapshot), "--driver-free", "100GiB", "--driver-size", "139GiB")
    assert cli.device(*call)["limit"] == 139 << 29
    assert cli.device(*call, "--limit", "8GiB")["limit"] == 8 << 30


def test_file_name_is_printed_without_control_characters(cli, tmp_path):
    path = tmp_path / "red\x1b[31m.pickle.gz"
    path.write_bytes(TORCH.read_bytes())
    out = cli.text("measure", path)
    assert "\x1b" not in out
    assert "red\\x1b[31m.pickle.gz" in out


def test_flags_add_the_driver(cli):
    device = cli.device("measure", TORCH, "--driver-free=100GiB", "--driver-size=139.8GiB", "--limit=8GiB")
    assert device["limit"] == 8 << 30
    assert device["headroom"] == (8 << 30) - device["reserved"]


def test_flags_replace_the_files_figures(cli):
    assert cli.device("measure", CASE, "--limit", "3GiB")["limit"] == 3 << 30


def test_text_starts_with_the_verdict(cli):
    code, out, err = cli.run("measure", CASE)
    assert (code, err) == (0, "")
    assert out.startswith(f"device 0 of {CASE}, next request on stream 0\nfine: ratio ")
    assert "\x1b" not in out


def test_every_device_is_measured(cli, two_devices):
    assert [device["device"] for device in cli.json("measure", two_devices)["devices"]] == [0, 1]
    assert cli.device("measure", two_devices, "--device", "1")["device"] == 1


@pytest.mark.parametrize("flag", ["--driver-free=1GiB", "--driver-size=1GiB", "--limit=1GiB", "--stream=7"])
def test_figure_for_several_devices_is_refused(cli, two_devices, flag):
    code, error = cli.refusal("measure", two_devices, flag)
    assert (code, "has devices 0, 1; choose with --device" in error) == (2, True)


def test_limit_of_zero_is_refused(cli):
    code, error = cli.refusal("measure", CASE, "--limit", "0")
    assert (code, "a memory limit must be above 0, such as 40GiB (got 0)" in error) == (2, True)


def test_missing_settings_are_noted(cli, save):
    path = save(load(TORCH)["segments"])
    assert cli.json("measure", path)["settings_known"] is False
    assert cli.json("measure", path, "--alloc-conf", "max_split_size_mb:64")["settings_known"] is True
    assert "torch's defaults are assumed (see --alloc-conf)" in cli.text("measure", path)


def test_standard_input_is_read():
    with open(TORCH, "rb") as file:
        command = [sys.executable, "-m", "gpufrag", "measure", "-", "--json"]
        result = subprocess.run(command, stdin=file, capture_output=True, timeout=60, check=True)
    assert json.loads(result.stdout)["file"] == "standard input"
