"""`gpufrag fit`: the table, JSON and its errors."""

from __future__ import annotations

import json

import pytest

from gpufrag.cli import main
from helpers import TESTS

TRACE = str(TESTS / "golden" / "churn-small-default.json.gz")


def test_fit_prints_what_the_job_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", TRACE, "--card", "2GiB", "--card", "80GiB"]) == 0
    first, *_ = lines = capsys.readouterr().out.splitlines()
    assert "churn-small-default.json.gz: device 0: needs" in first
    assert any(line.startswith("torch defaults (recorded)") and line.endswith("fits") for line in lines)


def test_fit_json_has_bytes_and_null(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", TRACE, "--card", "1GiB", "--card", "80GiB", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    recorded = device["fits"][0]
    assert recorded["smallest_limit"] % (2 << 20) == 0
    assert recorded["flushes"] == {"1.00 GiB": None, "80.0 GiB": 0}


def test_fit_without_history_says_how_to_record(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    (tmp_path / "heap.json").write_text(json.dumps({"segments": []}))
    assert main(["fit", str(tmp_path / "heap.json")]) == 1
    assert "_record_memory_history" in capsys.readouterr().err
