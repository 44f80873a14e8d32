"""Plans to defragment a heap: what moves, and what the heap is afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.defragment import Plan, Target, plan
from gpufrag.model.fragmentation import Fragmentation
from gpufrag.model.heap import ALLOCATED, AWAITING, INACTIVE, Heap, Segment
from gpufrag.model.settings import MIB, Settings
from helpers import GoldenCase

GIB = 1 << 30
HOST = 8 * GIB


def segment(address: int, *blocks: tuple[int, str], **changes: object) -> Segment:
    """A plain large segment; blocks are (MiB, state)."""
    sizes = tuple(size * MIB for size, _ in blocks)
    states = tuple(state for _, state in blocks)
    whole = Segment(0, address << 20, 0, False, (0, 0), False, sizes, sizes, states)
    return whole._replace(**changes)


def pinned_segment(address: int, live: int = 12, free: int = 28) -> Segment:
    return segment(address, (live, ALLOCATED), (free, INACTIVE))


def live_addresses(heap: Heap) -> set[int]:
    return {block.address for part in heap.segments for block in part.blocks() if block.state is ALLOCATED}


def plan_all(heap: Heap, driver: Driver, target: Target = Target(), host_limit: int = HOST) -> Plan:
    return plan(heap, driver, live_addresses(heap), host_limit, target)


def settled(case: GoldenCase) -> Heap:
    """The recorded heap after its streams have finished."""
    parts = case.heap.segments
    states = [tuple(INACTIVE if state is AWAITING else state for state in part.states) for part in parts]
    return Heap(tuple(part._replace(states=state) for part, state in zip(parts, states)), case.heap.settings)


def requested(measured: Fragmentation) -> int:
    return measured.large.requested + measured.small.requested


FULL = Driver(free=GIB, size=80 * GIB, limit=160 * MIB)
FOUR_PINNED = Heap(tuple(pinned_segment(64 * index) for index in range(1, 5)))


def test_plan_for_pinned_segments_frees_them() -> None:
    found = plan_all(FOUR_PINNED, FULL)
    assert found.before.largest_allocatable == 28 * MIB
    # 48 MiB live need a segment each of 12 MiB; all else is one piece
    assert found.after.largest_allocatable == 112 * MIB
    assert found.after.ratio == 1.0
    assert requested(found.after) == requested(found.before)


def test_plan_without_device_room_starts_through_host() -> None:
    found = plan_all(FOUR_PINNED, FULL)
    assert not found.rounds[0].on_device


def test_plan_with_device_room_never_uses_host() -> None:
    found = plan_all(FOUR_PINNED, replace(FULL, limit=400 * MIB))
    assert all(one.on_device for one in found.rounds)
    assert found.bytes == 48 * MIB


def test_plan_without_any_room_moves_nothing() -> None:
    found = plan_all(FOUR_PINNED, FULL, host_limit=0)
    assert (found.rounds, found.after) == ((), found.before)


@pytest.mark.parametrize("target", [Target(ratio=2.5), Target(bytes=60 * MIB)])
def test_plan_stops_at_its_target(target: Target) -> None:
    found = plan_all(FOUR_PINNED, replace(FULL, limit=180 * MIB), target)
    assert target.is_reached(found.after)
    assert found.bytes < 48 * MIB


def test_plan_for_a_reached_target_is_empty() -> None:
    assert plan_all(FOUR_PINNED, FULL, Target(ratio=10.0)).rounds == ()


def test_plan_takes_the_emptiest_segment_first() -> None:
    heap = Heap((pinned_segment(64, 36, 4), pinned_segment(128, 12, 28), pinned_segment(192, 30, 10)))
    found = plan_all(heap, Driver(GIB, 80 * GIB, 400 * MIB), Target(bytes=300 * MIB))
    assert [move.address for move in found.rounds[0].moves] == [128 << 20]


def test_plan_leaves_a_segment_with_one_immovable_block() -> None:
    heap = Heap((segment(64, (12, ALLOCATED), (12, INACTIVE), (12, ALLOCATED)), pinned_segment(128)))
    found = plan(heap, Driver(GIB, 80 * GIB, 400 * MIB), {64 << 20, 128 << 20}, HOST)
    assert [move.address for one in found.rounds for move in one.moves] == [128 << 20]
    assert found.pinned == 12 * MIB


def test_plan_leaves_private_pools() -> None:
    heap = Heap((pinned_segment(64)._replace(pool=(0, 3)), pinned_segment(128)))
    found = plan_all(heap, Driver(GIB, 80 * GIB, 400 * MIB))
    assert [move.address for one in found.rounds for move in one.moves] == [128 << 20]


def test_plan_refuses_blocks_that_wait_for_a_stream() -> None:
    with pytest.raises(BadInput, match="synchronize"):
        plan_all(Heap((segment(64, (12, ALLOCATED), (28, AWAITING)),)), FULL)


def test_plan_refuses_a_heap_of_two_devices() -> None:
    with pytest.raises(BadInput, match="one device at a time"):
        plan_all(Heap((pinned_segment(64), pinned_segment(64)._replace(device=1))), FULL)


def test_recorded_heap_is_whole_after_its_plan(golden_case: GoldenCase) -> None:
    found = plan_all(settled(golden_case), golden_case.driver)
    assert requested(found.after) == requested(found.before)
    assert found.after.stranded <= max(found.before.stranded, 20 * MIB)
    assert (found.after.ratio or 0) < 1.15


def test_fragmented_golden_heap_drops_below_the_trigger(golden_case_cache: GoldenCase) -> None:
    found = plan_all(settled(golden_case_cache), golden_case_cache.driver)
    assert found.before.ratio > 4
    assert found.after.ratio < 1.3


def test_expandable_heap_frees_whole_pages() -> None:
    settings = Settings(expandable_segments=True)
    blocks = [(2, ALLOCATED), (18, INACTIVE)] * 10
    heap = Heap((segment(1 << 10, *blocks, expandable=True),), settings)
    found = plan_all(heap, Driver(GIB, 80 * GIB, 400 * MIB))
    assert found.before.reserved == 200 * MIB
    assert found.after.reserved <= 40 * MIB


@pytest.fixture
def golden_case_cache(golden) -> GoldenCase:  # type: ignore[no-untyped-def]
    case: GoldenCase = golden("cache-default")
    return case
