"""The allocator of a torch release behaves over the stub as on a real GPU."""

import gzip
import json
from pathlib import Path

import pytest

from fake_cuda import recordings
from helpers import GOLDEN_NAMES

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # the first test downloads torch
GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED_ON = "2.11.0"


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_real_allocator_reproduces_golden_recording(run_programs, name: str) -> None:
    case = json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))
    made = run_programs(RECORDED_ON, [recordings.program_of(name, case)], case["conf"])
    assert recordings.difference(case, made[name]) is None
