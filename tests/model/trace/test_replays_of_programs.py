"""Short programs on torch releases' allocators that an earlier reading of their traces got wrong."""

import json
from pathlib import Path

import pytest
from differential import verdict

from helpers import TESTS

RECORDED = sorted((TESTS / "fixtures" / "replays").glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_replay_is_as_recorded(path: Path) -> None:
    """The segments, the blocks and the failed requests are; so is the number of flushes, or it is in doubt."""
    case = json.loads(path.read_text())
    assert verdict(case["recording"])[0] == case["verdict"]
