"""`gpufrag measure`: flags, text, JSON, exit codes."""

import json
import pickle
import subprocess
import sys

import pytest

from gpufrag.cli import main
from gpufrag.snapshot_file import load
from helpers import SNAPSHOTS, TESTS

CASE = str(TESTS / "golden" / "train-cap4.json.gz")
TORCH = str(SNAPSHOTS / "default-0.pickle.gz")


def _json(capsys, *arguments):
    assert main(["measure", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _refusal(capsys, *arguments):
    code = main(["measure", *arguments])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return code, err


@pytest.fixture
def two_devices(tmp_path):
    snapshot = load(TORCH)
    snapshot["segments"] += [segment | {"device": 1} for segment in snapshot["segments"]]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    return str(path)


def test_recorded_case_needs_no_flag(capsys, golden):
    (device,) = _json(capsys, CASE)["devices"]
    raw = golden("train-cap4").raw
    assert device["limit"] == raw["cap_bytes"]
    assert 0 <= device["largest_allocatable"] - raw["largest_request_that_succeeds"] < 512


def test_memory_fraction_of_the_settings_is_the_limit(capsys, tmp_path):
    snapshot = load(TORCH)
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
    path = tmp_path / "half.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    driver = ("--driver-free", "100GiB", "--driver-size", "139GiB")
    (device,) = _json(capsys, str(path), *driver)["devices"]
    assert device["limit"] == 139 << 29
    (device,) = _json(capsys, str(path), *driver, "--limit", "8GiB")["devices"]
    assert device["limit"] == 8 << 30


def test_file_name_is_printed_without_control_characters(capsys, tmp_path):
    path = tmp_path / "red\x1b[31m.pickle.gz"
    path.write_bytes((SNAPSHOTS / "default-0.pickle.gz").read_bytes())
    assert main(["measure", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "red\\x1b[31m.pickle.gz" in out


def test_flags_add_the_driver(capsys):
    (device,) = _json(capsys, TORCH, "--driver-free", "100GiB", "--driver-size", "139.8GiB", "--limit", "8GiB")[
        "devices"
    ]
    assert device["limit"] == 8 << 30
    assert device["headroom"] == (8 << 30) - device["reserved"]


def test_flags_replace_the_files_figures(capsys):
    (device,) = _json(capsys, CASE, "--limit", "3GiB")["devices"]
    assert device["limit"] == 3 << 30


def test_text_starts_with_the_verdict(capsys):
    assert main(["measure", CASE]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"device 0 of {CASE}, next request on stream 0\nfine: ratio ")
    assert "\x1b" not in out


def test_every_device_is_measured(capsys, two_devices):
    assert [device["device"] for device in _json(capsys, two_devices)["devices"]] == [0, 1]
    assert [device["device"] for device in _json(capsys, two_devices, "--device", "1")["devices"]] == [1]


@pytest.mark.parametrize("flag", ["--driver-free=1GiB", "--driver-size=1GiB", "--limit=1GiB", "--stream=7"])
def test_figure_for_several_devices_is_refused(capsys, two_devices, flag):
    code, err = _refusal(capsys, two_devices, flag)
    assert code == 2
    assert "has devices 0, 1; choose with --device" in err


def test_missing_settings_are_noted(capsys, tmp_path):
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps(load(TORCH)["segments"], 4))
    assert _json(capsys, str(path))["settings_known"] is False
    assert _json(capsys, str(path), "--alloc-conf", "max_split_size_mb:64")["settings_known"] is True
    assert main(["measure", str(path)]) == 0
    assert "torch's defaults are assumed (see --alloc-conf)" in capsys.readouterr().out


def test_standard_input_is_read():
    with open(TORCH, "rb") as file:
        command = [sys.executable, "-m", "gpufrag", "measure", "-", "--json"]
        result = subprocess.run(command, stdin=file, capture_output=True, timeout=60, check=True)
    assert json.loads(result.stdout)["file"] == "standard input"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["/nowhere/x"], 1, "/nowhere/x: no such file"),
        ([__file__], 1, "neither a pickle nor JSON"),
        ([TORCH, "--device", "3"], 2, "--device 3: "),
        ([TORCH, "--limit", "4G"], 2, "argument --limit: '4G' is ambiguous"),
        (
            [TORCH, "--alloc-conf", "max_split_size_mb:lots"],
            2,
            "argument --alloc-conf: allocator setting max_split_size_mb",
        ),
        ([TORCH, "--stream", "one"], 2, "argument --stream: 'one' is not a whole number of at least 0"),
        ([TORCH, "--stream", "-1"], 2, "argument --stream: '-1' is not a whole number of at least 0"),
        ([TORCH, "--device", "-1"], 2, "argument --device: '-1' is not a whole number of at least 0"),
        ([TORCH, "--alloc-conf", "foo:bar"], 2, "torch has no allocator setting 'foo'"),
        ([TORCH, "--alloc-conf", "expandable_segments=True"], 2, "is not of the form key:value"),
        ([CASE, "--driver-free", "200GiB"], 2, "--driver-free (200 GiB) is larger than the device (140 GiB)"),
        (
            [TORCH, "--driver-free", "2GiB", "--driver-size", "1GiB"],
            2,
            "--driver-free (2.00 GiB) is larger than the device",
        ),
        ([TORCH, "--limit", "40"], 2, "argument --limit: '40' is only 40 B; add a unit, as in 40GiB"),
        ([], 2, "the following arguments are required: FILE"),
    ],
)
def test_bad_call_is_one_line(capsys, arguments, code, words):
    found, err = _refusal(capsys, *arguments)
    assert found == code
    assert words in err
