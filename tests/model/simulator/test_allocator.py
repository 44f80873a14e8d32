"""The rules of torch's allocator, one by one: those that recorded cases cover by chance or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import ALLOCATED, AWAITING, INACTIVE
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.trace.events import Event

KIB, MIB = 1 << 10, 1 << 20
GRAPH = (0, 1)


def live(allocator: Allocator, size: int, stream: int = 0, **pool: Any) -> Block:
    block = allocator.malloc(size, stream, **pool)
    assert block is not None, f"no room for {size} bytes"
    return block


def layout(allocator: Allocator) -> list[list[tuple[int, str]]]:
    """Size and state of each block, by segment, the smallest segment first."""
    return sorted([(b.size, b.state) for b in s.blocks()] for s in allocator.heap().segments)


def limited(limit: int, **settings: Any) -> Allocator:
    return Allocator(Settings(**settings), Driver(free=1 << 40, size=1 << 40, limit=limit))


def test_small_request_takes_512_bytes() -> None:
    allocator = Allocator()
    live(allocator, 1)
    assert layout(allocator) == [[(512, ALLOCATED), (2 * MIB - 512, INACTIVE)]]


def test_medium_request_splits_a_20_mib_segment() -> None:
    allocator = Allocator()
    live(allocator, 3 * MIB)
    assert layout(allocator) == [[(3 * MIB, ALLOCATED), (17 * MIB, INACTIVE)]]


def test_large_block_keeps_up_to_one_mebibyte() -> None:
    allocator = Allocator()
    assert live(allocator, 11 * MIB).size == 12 * MIB
    assert live(allocator, 11 * MIB - 512).size == 11 * MIB - 512


def test_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    blocks = [live(allocator, size * MIB) for size in (40, 12, 20)]
    for block in blocks:
        allocator.free(block)
    assert live(allocator, 12 * MIB - 3).address == blocks[1].address


def test_block_serves_its_stream_and_pool_only() -> None:
    allocator = Allocator()
    allocator.free(live(allocator, 12 * MIB, stream=7))
    for stream, pool in ((0, (0, 0)), (7, GRAPH)):
        live(allocator, 12 * MIB, stream, pool=pool)
    assert allocator.counters.device_allocs == 3
    assert allocator.private_reserved() == 12 * MIB


def test_free_neighbours_merge() -> None:
    allocator = Allocator()
    blocks = [live(allocator, 4 * MIB) for _ in range(5)]
    for block in (blocks[1], blocks[3], blocks[2]):
        allocator.free(block)
    assert layout(allocator) == [[(4 * MIB, ALLOCATED), (12 * MIB, INACTIVE), (4 * MIB, ALLOCATED)]]


def test_freeing_a_block_twice_raises() -> None:
    allocator = Allocator()
    block = live(allocator, 1)
    allocator.free(block)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(block)


def test_free_segments_are_released_before_a_failure() -> None:
    allocator = limited(40 * MIB)
    allocator.free(live(allocator, 24 * MIB))
    live(allocator, 30 * MIB)
    assert layout(allocator) == [[(30 * MIB, ALLOCATED)]]
    assert allocator.counters.alloc_retries == 1
    assert allocator.counters.ooms == 0


def test_request_without_a_free_segment_fails() -> None:
    allocator = limited(40 * MIB)
    live(allocator, 24 * MIB)
    assert allocator.malloc(30 * MIB) is None
    assert (allocator.counters.alloc_retries, allocator.counters.ooms) == (1, 1)


def test_driver_bounds_like_the_limit() -> None:
    allocator = Allocator(driver=Driver(free=42 * MIB))
    live(allocator, 24 * MIB)
    assert allocator.malloc(18 * MIB) is None
    assert live(allocator, 16 * MIB).size == 16 * MIB
    assert allocator.driver.free == 2 * MIB  # which the driver keeps


def test_limit_may_come_from_the_settings() -> None:
    allocator = Allocator(Settings(per_process_memory_fraction=0.5), Driver(size=80 * MIB))
    assert allocator.malloc(42 * MIB) is None
    assert allocator.malloc(40 * MIB) is not None


def test_capture_returns_no_memory() -> None:
    allocator = limited(40 * MIB)
    allocator.free(live(allocator, 24 * MIB))
    allocator.capturing = True
    assert allocator.malloc(30 * MIB) is None
    assert allocator.counters.device_frees == 0


@pytest.mark.parametrize(("torch", "flushes"), [((2, 12), False), ((2, 13), True)])
def test_private_pool_request_flushes_since_2_13(torch: tuple[int, int], flushes: bool) -> None:
    allocator = limited(40 * MIB, torch=torch)
    allocator.free(live(allocator, 24 * MIB))
    assert (allocator.malloc(30 * MIB, pool=GRAPH) is not None) == flushes
    assert allocator.counters.device_frees == flushes


def test_request_in_a_capture_does_not_flush() -> None:
    allocator = limited(40 * MIB)
    allocator.free(live(allocator, 24 * MIB))
    allocator.capturing = True
    assert allocator.malloc(30 * MIB, pool=GRAPH) is None


@pytest.mark.parametrize(
    ("torch", "taken"), [((2, 11), "lowest address"), ((2, 12), "oldest block"), ((2, 13), "oldest segment")]
)
def test_equal_free_blocks_are_taken_in_release_order(torch: tuple[int, int], taken: str) -> None:
    places = AddressSpace([(300 * MIB, 20 * MIB), (100 * MIB, 20 * MIB)])
    allocator = Allocator(Settings(torch=torch), addresses=places)
    first, second = ([live(allocator, 4 * MIB) for _ in range(5)] for _ in range(2))
    # the last block of a segment is the one that was made with it: the others were cut off later
    free = {"oldest segment": first[1], "oldest block": first[4], "lowest address": second[1]}
    for block in free.values():
        allocator.free(block)
    assert live(allocator, 4 * MIB).address == free[taken].address


def test_shared_block_waits_for_its_stream() -> None:
    allocator = Allocator()
    block = live(allocator, 12 * MIB)
    allocator.record_stream(block, stream=7)
    allocator.free(block)
    assert layout(allocator) == [[(12 * MIB, AWAITING)]]
    assert (allocator.totals(small=False).allocated, allocator.totals(small=False).active) == (0, 12 * MIB)
    allocator.complete(block)
    assert layout(allocator) == [[(12 * MIB, INACTIVE)]]


def test_own_stream_does_not_share_a_block() -> None:
    allocator = Allocator()
    block = live(allocator, 12 * MIB, stream=7)
    allocator.record_stream(block, stream=7)
    allocator.free(block)
    assert layout(allocator) == [[(12 * MIB, INACTIVE)]]


def test_flush_waits_for_all_streams() -> None:
    allocator = limited(40 * MIB)
    block = live(allocator, 24 * MIB)
    allocator.record_stream(block, stream=7)
    allocator.free(block)
    live(allocator, 30 * MIB)
    allocator.complete(block)  # a late event
    assert layout(allocator) == [[(30 * MIB, ALLOCATED)]]


def test_oversize_block_serves_near_sizes_only() -> None:
    allocator = Allocator(Settings(max_split_size=64 * MIB, max_non_split_rounding=30 * MIB))
    big = live(allocator, 100 * MIB)
    allocator.free(big)
    assert live(allocator, 63 * MIB).address != big.address  # too small for it
    assert live(allocator, 70 * MIB).address != big.address  # 30 MiB smaller: not near
    near = live(allocator, 70 * MIB + 512)
    assert (near.address, near.size) == (big.address, 100 * MIB)


def test_smallest_sufficient_oversize_block_is_released_first() -> None:
    allocator = limited(300 * MIB, max_split_size=64 * MIB)
    blocks = [live(allocator, size * MIB) for size in (100, 70, 120)]
    for block in blocks:
        allocator.free(block)
    assert live(allocator, 30 * MIB).size == 30 * MIB
    assert layout(allocator) == [[(30 * MIB, ALLOCATED)], [(100 * MIB, INACTIVE)], [(120 * MIB, INACTIVE)]]
    assert allocator.counters.alloc_retries == 0


def test_largest_oversize_blocks_are_released_first() -> None:
    allocator = limited(300 * MIB, max_split_size=64 * MIB)
    blocks = [live(allocator, size * MIB) for size in (100, 70, 120)]
    for block in blocks:
        allocator.free(block)
    assert live(allocator, 200 * MIB).size == 200 * MIB
    assert layout(allocator) == [[(70 * MIB, INACTIVE)], [(200 * MIB, ALLOCATED)]]


def test_old_segments_above_the_threshold_are_collected() -> None:
    allocator = limited(140 * MIB, garbage_collection_threshold=0.5)
    old, young = live(allocator, 30 * MIB), live(allocator, 24 * MIB)
    allocator.free(old)
    for _ in range(3):  # searches of the same pool, on another stream: the free block ages
        live(allocator, 4 * MIB, stream=7)
    allocator.free(young)
    live(allocator, 60 * MIB)
    assert [(24 * MIB, INACTIVE)] in layout(allocator)
    assert [(30 * MIB, INACTIVE)] not in layout(allocator)
    assert allocator.counters.alloc_retries == 0


def test_segments_below_the_threshold_are_kept() -> None:
    allocator = limited(200 * MIB, garbage_collection_threshold=0.5)
    allocator.free(live(allocator, 30 * MIB))
    live(allocator, 40 * MIB)
    assert allocator.counters.device_frees == 0


def test_live_private_pool_keeps_its_free_segments() -> None:
    allocator = Allocator()
    allocator.free(live(allocator, 12 * MIB, pool=GRAPH))
    allocator.empty_cache()
    assert allocator.reserved == 12 * MIB
    allocator.release_pool(GRAPH)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_pool_without_splits_serves_whole_segments() -> None:
    allocator = Allocator()
    allocator.add_pool(GRAPH, whole=True)
    assert live(allocator, 3 * MIB, pool=GRAPH).size == 20 * MIB
    assert live(allocator, 5, pool=GRAPH).size == 2 * MIB


@pytest.mark.parametrize(("torch", "retries"), [((2, 10), 1), ((2, 11), 0)])
def test_lending_pool_serves_before_a_flush_since_2_11(torch: tuple[int, int], retries: int) -> None:
    allocator = limited(100 * MIB, torch=torch)
    allocator.add_pool(GRAPH, on_oom=True)
    lent = live(allocator, 40 * MIB, pool=GRAPH)
    allocator.free(lent)
    live(allocator, 40 * MIB)
    assert live(allocator, 38 * MIB).address == lent.address
    assert allocator.counters.alloc_retries == retries


@pytest.mark.parametrize(("torch", "expandable"), [((2, 4), False), ((2, 5), True)])
def test_private_pools_are_expandable_since_2_5(torch: tuple[int, int], expandable: bool) -> None:
    allocator = Allocator(Settings(expandable_segments=True, torch=torch))
    allocator.free(live(allocator, 12 * MIB, pool=GRAPH))
    assert [segment.expandable for segment in allocator.heap().segments] == [expandable]
    allocator.release_pool(GRAPH)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_other_pool_serves_no_request() -> None:
    allocator = limited(60 * MIB)
    allocator.free(live(allocator, 40 * MIB, pool=GRAPH))
    assert allocator.malloc(30 * MIB) is None


def test_pool_with_own_allocator_has_plain_segments() -> None:
    allocator = Allocator(Settings(expandable_segments=True))
    allocator.add_pool(GRAPH, plain=True)
    live(allocator, 12 * MIB, pool=GRAPH)
    live(allocator, 12 * MIB)
    assert [(s.pool == GRAPH, s.expandable) for s in allocator.heap().segments].count((True, False)) == 1
    assert layout(allocator) == [[(12 * MIB, ALLOCATED)], [(12 * MIB, ALLOCATED), (8 * MIB, INACTIVE)]]


def test_observer_receives_every_segment_change() -> None:
    events: list[Event] = []
    allocator = Allocator(observe=events.append)
    block = live(allocator, 12 * MIB, stream=7)
    allocator.free(block)
    allocator.empty_cache()
    assert events == [
        Event("segment_alloc", block.address, 12 * MIB, 7),
        Event("segment_free", block.address, 12 * MIB, 7),
    ]


def test_requested_and_rounded_bytes_are_both_counted() -> None:
    allocator = Allocator()
    live(allocator, 700)
    totals = allocator.totals(small=True)
    assert (totals.requested, totals.active, totals.reserved) == (700, KIB, 2 * MIB)
    assert totals.inactive_split == 2 * MIB - KIB


def test_end_of_a_pool_without_requests_is_ignored() -> None:
    allocator = Allocator()
    allocator.release_pool(GRAPH)
    assert not allocator.is_released(GRAPH)
