"""explain names the right line of programs with a known fault, recorded with torch (benchmarks/explain_programs.py)."""

from __future__ import annotations

from typing import Any

import pytest
from explain_programs import named_first

from gpufrag.reports.explain import Explained, as_record
from gpufrag.snapshot_file.profile import read_profiles
from gpufrag.snapshot_file.reading import load
from helpers import TESTS

FOLDER = TESTS / "fixtures" / "programs"
LINES = {"growing_cache": 42, "dynamic_shapes": 52, "empty_cache": None, "keeps_losses": 72, "late_optimizer": 86}
"""Of the marked line, when the program was recorded."""


def explained(name: str) -> dict[str, Any]:
    (device,) = read_profiles(load(FOLDER / f"{name}.pickle.gz"), {})
    return as_record(Explained(*device))


def test_every_recorded_program_has_a_line() -> None:
    assert {path.name.split(".")[0] for path in FOLDER.glob("*.pickle.gz")} == LINES.keys()


@pytest.mark.parametrize("name", LINES)
def test_explain_names_the_line_first(name: str) -> None:
    found, line = explained(name), LINES[name]
    text = named_first(name, found)
    assert text
    assert line is None or f"/job/explain_programs.py:{line} " in text
