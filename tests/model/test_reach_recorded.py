"""The largest allocatable request against what a real GPU answered beyond the golden cases."""

import gzip
import json
from pathlib import Path

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import parse

FIXTURES = Path(__file__).parent.parent / "fixtures"
LAYOUTS = sorted((FIXTURES / "layouts").glob("*.json.gz"))
RESERVE = json.loads((FIXTURES / "driver_reserve.json").read_text())


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.name.split(".")[0])
def test_largest_allocatable_is_what_bisection_found(path: Path) -> None:
    case = json.loads(gzip.decompress(path.read_bytes()))
    heap = parse({"segments": case["segments"], "allocator_settings": case["settings"]})
    driver = Driver(case["driver_free"], case["driver_total"], case["cap_bytes"] or None)
    assert measure(heap, driver, stream=0).largest_allocatable == case["largest_request_that_succeeds"]


@pytest.mark.parametrize("row", RESERVE, ids=lambda row: f"{row['left_gib']}GiB-by-{row['piece_mib']}MiB")
def test_the_driver_hands_out_what_usable_says(row: dict[str, int]) -> None:
    assert Driver.usable(row["free"]) == row["largest"] == row["again"]


def test_usable_is_never_negative() -> None:
    assert [Driver.usable(free) for free in (0, 1, 2 << 20, (4 << 20) - 1, 4 << 20)] == [0, 0, 0, 0, 2 << 20]
