"""The largest request that would succeed, checked with bisection on an H200, by hand, and as a property."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver, main_stream
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import parse
from helpers import GOLDEN_NAMES, TESTS, GoldenCase
from strategies import GIB, INACTIVE, LIVE, MIB, drivers, merged, reserved_by, segment, snapshots

Raw = dict[str, Any]
PLENTY = Driver(free=64 * GIB, size=128 * GIB, limit=None)
ROUNDUP_4 = {str(1 << interval): 4 for interval in range(16)}


def largest(*segments: Raw, driver: Driver, stream: int = 0, **settings: Any) -> int:
    heap = parse({"segments": segments, "allocator_settings": settings})
    found = measure(heap, driver, stream).largest_allocatable
    assert found is not None
    return found


def test_largest_equals_bisection_on_a_gpu(golden_case: GoldenCase) -> None:
    """The recorded request succeeded, 512 bytes more did not; blocks are multiples of 512."""
    request = golden_case.raw["largest_request_that_succeeds"]
    found = measure(golden_case.heap, golden_case.driver, stream=0).largest_allocatable
    assert found == -(-request // 512) * 512


def test_main_stream_has_most_reserved_memory() -> None:
    rows = [(1 << 40, 7, 2), (2 << 40, 5, 3), (3 << 40, 7, 2), (4 << 40, 0, 3)]
    segments = [
        {"device": 0, "address": address, "stream": stream, "total_size": size << 21, "segment_type": "large"}
        | {"blocks": [{"address": address, "size": size << 21, "requested_size": 0, "state": "inactive"}]}
        for address, stream, size in rows
    ]
    assert main_stream(parse(segments)) == 7


@pytest.mark.parametrize("golden_case", [n for n in GOLDEN_NAMES if not n.startswith("streams")], indirect=True)
def test_main_stream_of_one_stream_is_that_stream(golden_case: GoldenCase) -> None:
    assert main_stream(golden_case.heap) == 0


def test_empty_heap_leaves_the_drivers_last_2_mib() -> None:
    assert largest(driver=PLENTY) == 64 * GIB - 2 * MIB


def test_limit_counts_whole_segments() -> None:
    kept = segment(0, [(20 * MIB, LIVE)])
    assert largest(kept, driver=Driver(free=64 * GIB, size=128 * GIB, limit=1 * GIB + MIB)) == 1004 * MIB


def test_free_segment_is_returned_for_a_larger_one() -> None:
    free, pinned = segment(0, [(30 * MIB, INACTIVE)]), segment(1 << 30, [(2 * MIB, LIVE), (18 * MIB, INACTIVE)])
    assert largest(free, pinned, driver=Driver(free=0, size=GIB, limit=70 * MIB)) == 30 * MIB


def test_room_of_2_to_20_mib_fits_some_sizes() -> None:
    """12 MiB gets its own segment; a request of 1 to 10 MiB would need one of 20."""
    assert largest(driver=Driver(size=GIB, limit=13 * MIB)) == 12 * MIB
    assert largest(driver=Driver(size=GIB, limit=9 * MIB)) == 1 * MIB
    assert largest(driver=Driver(size=GIB, limit=1 * MIB)) == 0


FREE_50 = [(50 * MIB, INACTIVE), (10 * MIB, LIVE)]


@pytest.mark.parametrize(
    ("cached", "settings", "expected"),
    [
        (segment(0, FREE_50, stream=0), {}, 50 * MIB),
        (segment(0, FREE_50, stream=7), {}, 0),
        (segment(0, FREE_50, segment_pool_id=(0, 1)), {}, 0),
        (segment(0, [(512, LIVE), (2 * MIB - 512, INACTIVE)], segment_type="small"), {}, MIB),
        (segment(0, [(200 * MIB, INACTIVE), (100 * MIB, LIVE)]), {"max_split_size": 64 * MIB}, 200 * MIB),
        (
            segment(20 * MIB, [(5 * MIB, LIVE), (15 * MIB, INACTIVE)], is_expandable=True),
            {"expandable_segments": False},
            0,
        ),
    ],
    ids=["stream", "other stream", "private pool", "small pool", "unsplittable", "expandable segments off"],
)
def test_cached_block_serves_its_own_kind_only(cached: Raw, settings: Raw, expected: int) -> None:
    assert largest(cached, driver=Driver(free=0, size=GIB), **settings) == expected


def test_rounded_size_of_the_request_fits() -> None:
    cached = segment(0, [(14 * MIB, INACTIVE), (6 * MIB, LIVE)])
    none = Driver(free=0, size=GIB)
    assert largest(cached, driver=none, roundup_power2_divisions=ROUNDUP_4) == 14 * MIB
    cached = segment(0, [(13 * MIB, INACTIVE), (7 * MIB, LIVE)])
    assert largest(cached, driver=none, roundup_power2_divisions=ROUNDUP_4) == 12 * MIB


def test_free_edge_adds_to_new_pages() -> None:
    """5 MiB live, 15 MiB free up to the end of the page: two new pages next to them make 55 MiB."""
    mapped = segment(20 * MIB, [(5 * MIB, LIVE), (15 * MIB, INACTIVE)], is_expandable=True)
    driver = Driver(free=44 * MIB, size=GIB)
    assert largest(mapped, driver=driver, expandable_segments=True) == 55 * MIB


def test_unmapped_first_pages_are_the_lowest_room() -> None:
    """The 1152 MiB of the reservation end 100 MiB into the next segment, so it begins 100 MiB before its first page.

    Torch takes the lowest room: 55 MiB there need three pages, and the driver has two.
    """
    first = segment(1 << 30, [(5 * MIB, LIVE), (15 * MIB, INACTIVE)], is_expandable=True)
    following = segment((1 << 30) + 1052 * MIB, [(20 * MIB, LIVE)], is_expandable=True, stream=7)
    driver = Driver(free=44 * MIB, size=GIB)
    assert largest(first, following, driver=driver, expandable_segments=True) == 40 * MIB


SETTINGS: dict[str, Raw] = {
    "default": {"expandable": False},
    "roundup": {"expandable": False, "roundup_power2_divisions": ROUNDUP_4},
    "max_split": {"expandable": False, "max_split_size": 64 * MIB},
    "expandable": {"expandable": True},
    "expandable-roundup": {"expandable": True, "roundup_power2_divisions": ROUNDUP_4},
}
"""Settings under which a freed block never hurts; the last test has a combination where it does."""


def freed(snapshot: Raw, which: int) -> Raw:
    """The snapshot with its `which`-th live block freed and merged with its free neighbours."""
    result = copy.deepcopy(snapshot)
    live = [(raw, i) for raw in result["segments"] for i, b in enumerate(raw["blocks"]) if b["state"] == LIVE]
    raw, index = live[which % len(live)]
    raw["blocks"][index]["state"] = INACTIVE
    blocks = merged([(block["size"], block["state"]) for block in raw["blocks"]])
    header = {key: raw[key] for key in ("segment_type", "stream", "segment_pool_id", "is_expandable")}
    result["segments"][result["segments"].index(raw)] = segment(raw["address"], blocks, **header)
    return result


@pytest.mark.parametrize("setting", SETTINGS)
@given(data=st.data())
def test_freeing_a_block_never_lowers_it(setting: str, data: st.DataObject) -> None:
    snapshot = data.draw(snapshots(**SETTINGS[setting]))
    assume(any(block["state"] == LIVE for raw in snapshot["segments"] for block in raw["blocks"]))
    driver = data.draw(drivers(reserved_by(snapshot)))
    before = measure(parse(snapshot), driver, stream=0).largest_allocatable
    after = measure(parse(freed(snapshot, data.draw(st.integers(0, 50)))), driver, stream=0).largest_allocatable
    assert (before is None) == (after is None)
    assert before is None or after is None or after >= before


def test_freed_block_can_hurt_with_split_size_and_rounding() -> None:
    """188 MiB free is above the split size, and no rounded size is within 20 MiB of it, so it serves no request."""
    pinned = segment(0, [(2 * MIB, LIVE), (8 * MIB, INACTIVE), (180 * MIB, LIVE)])
    merged_block = segment(0, [(2 * MIB, LIVE), (188 * MIB, INACTIVE)])
    full: Raw = {"driver": Driver(free=0, size=GIB), "max_split_size": 64 * MIB, "roundup_power2_divisions": ROUNDUP_4}
    assert largest(pinned, **full) == 8 * MIB
    assert largest(merged_block, **full) == 0


FIXTURES = TESTS / "fixtures"
LAYOUTS = sorted((FIXTURES / "layouts").glob("*.json.gz"))
RESERVE = json.loads((FIXTURES / "driver_reserve.json").read_text())


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.name.split(".")[0])
def test_largest_equals_bisection_of_layouts(path: Path) -> None:
    case = json.loads(gzip.decompress(path.read_bytes()))
    heap = parse({"segments": case["segments"], "allocator_settings": case["settings"]})
    driver = Driver(case["driver_free"], case["driver_total"], case["cap_bytes"] or None)
    assert measure(heap, driver, stream=0).largest_allocatable == case["largest_request_that_succeeds"]


@pytest.mark.parametrize("row", RESERVE, ids=lambda row: f"{row['left_gib']}GiB-by-{row['piece_mib']}MiB")
def test_driver_allocates_what_usable_returns(row: dict[str, int]) -> None:
    assert Driver.usable(row["free"]) == row["largest"] == row["again"]


def test_usable_is_never_negative() -> None:
    assert [Driver.usable(free) for free in (0, 1, 2 << 20, (4 << 20) - 1, 4 << 20)] == [0, 0, 0, 0, 2 << 20]
