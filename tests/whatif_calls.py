"""Helpers that call `gpufrag whatif`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpufrag.cli import main
from helpers import SNAPSHOTS

LATE = str(SNAPSHOTS / "train-varlen.pickle.gz")
EXPANDABLE = "expandable_segments:True"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["whatif", *arguments]) == 0
    return capsys.readouterr().out


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    (device,) = json.loads(printed(capsys, *arguments, "--json"))["devices"]
    return device
