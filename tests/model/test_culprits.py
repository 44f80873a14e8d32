"""Which call sites pin free memory, and what moving their blocks gains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.call_sites import Stack
from gpufrag.model.culprits import MOST, culprits, measure_without
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import INACTIVE, Heap, parse
from helpers import GoldenCase
from strategies import INACTIVE as FREE
from strategies import LIVE, MIB, segment, snapshots

A, B = ("a.py:1 f",), ("b.py:2 g",)


def heap_of(*segments: dict[str, Any], **settings: Any) -> Heap:
    return parse({"segments": segments, "allocator_settings": settings})


def test_single_block_pins_its_segment() -> None:
    heap = heap_of(segment(0, [(18 * MIB, FREE), (2 * MIB, LIVE)]), segment(1 << 30, [(40 * MIB, FREE)]))
    (found,) = culprits(heap, Driver(free=2 * MIB, size=1 << 30), {18 * MIB: A})
    assert (found.stack, found.blocks, found.size, found.pins) == (A, 1, 2 * MIB, 18 * MIB)
    assert found.unpinned == 18 * MIB
    assert found.allocatable == 18 * MIB


def test_segment_with_two_call_sites_is_divided() -> None:
    heap = heap_of(segment(0, [(2 * MIB, LIVE), (15 * MIB, FREE), (2 * MIB, LIVE), (1 * MIB, LIVE)]))
    found = culprits(heap, Driver(), {0: A, 17 * MIB: B, 19 * MIB: B})
    assert {each.stack: (each.blocks, each.size, each.pins) for each in found} == {
        A: (1, 2 * MIB, 15 * MIB // 2),
        B: (2, 3 * MIB, 15 * MIB // 2),
    }
    assert [each.unpinned for each in found] == [0, 15 * MIB]  # only without both
    assert [each.allocatable for each in found] == [None, None]


def test_free_run_of_expandable_segment_is_pinned_by_its_neighbours() -> None:
    """Of 50 MiB free between live blocks, 20 MiB are a whole page; the free end has no block after it."""
    blocks = [(5 * MIB, LIVE), (50 * MIB, FREE), (5 * MIB, LIVE), (10 * MIB, FREE)]
    heap = heap_of(segment(0, blocks, is_expandable=True), expandable_segments=True)
    found = culprits(heap, Driver(), {0: A, 55 * MIB: B})
    assert {each.stack: each.pins for each in found} == {A: 15 * MIB, B: 25 * MIB}


@pytest.mark.parametrize(
    "rows", [[(20 * MIB, FREE)], [(20 * MIB, LIVE)], [(10 * MIB, LIVE), (10 * MIB, LIVE)]], ids=["free", "live", "full"]
)
def test_heap_without_stranded_bytes_has_no_culprit(rows: list[tuple[int, str]]) -> None:
    assert culprits(heap_of(segment(0, rows)), Driver(), {}) == []


def test_private_pool_has_no_culprit() -> None:
    heap = heap_of(segment(0, [(6 * MIB, LIVE), (14 * MIB, FREE)], segment_pool_id=(0, 1)))
    assert culprits(heap, Driver(), {}) == []


def test_moved_blocks_still_take_their_memory() -> None:
    heap = heap_of(segment(0, [(18 * MIB, FREE), (2 * MIB, LIVE)]))
    found = measure_without(heap, Driver(free=10 * MIB, size=1 << 30), lambda address: True)
    assert (found.reserved, found.active, found.reclaimable, found.headroom) == (22 * MIB, 2 * MIB, 20 * MIB, 8 * MIB)


def sites_of(heap: Heap, divisor: int) -> dict[int, Stack]:
    blocks = [block for s in heap.segments for block in s.blocks() if block.state is not INACTIVE]
    return {block.address: (f"f{number % divisor}",) for number, block in enumerate(blocks)}


@given(snapshots(), st.integers(1, 9), st.booleans())
def test_pins_add_up_to_stranded(snapshot: dict[str, Any], divisor: int, known: bool) -> None:
    heap = parse(snapshot)
    driver = Driver(free=1 << 30, size=1 << 37) if known else Driver()
    found = culprits(heap, driver, sites_of(heap, divisor))
    stranded = measure(heap, driver).stranded
    assert sum(each.pins for each in found) == stranded
    assert [each.pins for each in found] == sorted((each.pins for each in found), reverse=True)
    gains = [each.unpinned or 0 for each in found]
    assert sum(gains) <= stranded
    assert all((each.unpinned is not None) == (number < MOST) for number, each in enumerate(found))
    assert all((each.allocatable is not None) == (known and number < MOST) for number, each in enumerate(found))


def test_recorded_heap_without_any_pin_has_all_free_memory(golden_case: GoldenCase) -> None:
    moved = measure_without(golden_case.heap, golden_case.driver, lambda address: True)
    assert moved.stranded == 0
