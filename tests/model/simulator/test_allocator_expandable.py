"""Expandable segments: which pages are mapped and unmapped."""

from __future__ import annotations

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import ALLOCATED, DEFAULT_POOL, INACTIVE
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block

MIB = 1 << 20
EXPANDABLE = Settings(expandable_segments=True)


def live(allocator: Allocator, size: int) -> Block:
    block = allocator.malloc(size)
    assert block is not None
    return block


def layout(allocator: Allocator) -> list[list[tuple[int, str]]]:
    """Size in MiB and state of each block, by mapped range."""
    return [[(b.size // MIB, b.state) for b in s.blocks()] for s in allocator.heap().segments]


def test_expandable_segment_grows_by_whole_pages() -> None:
    allocator = Allocator(EXPANDABLE)
    live(allocator, 15 * MIB)
    live(allocator, 12 * MIB)
    assert layout(allocator) == [[(15, ALLOCATED), (12, ALLOCATED), (13, INACTIVE)]]
    assert allocator.counters.device_allocs == 2


def test_only_the_missing_pages_are_mapped() -> None:
    allocator = Allocator(EXPANDABLE)
    live(allocator, 15 * MIB)
    live(allocator, 50 * MIB)
    assert allocator.reserved == 80 * MIB
    assert layout(allocator) == [[(15, ALLOCATED), (50, ALLOCATED), (15, INACTIVE)]]


def test_limit_counts_the_request_not_the_page() -> None:
    allocator = Allocator(EXPANDABLE, Driver(free=1 << 40, size=1 << 40, limit=50 * MIB))
    live(allocator, 15 * MIB)
    live(allocator, 30 * MIB)
    assert allocator.reserved == 60 * MIB  # the last page goes beyond the limit
    assert allocator.malloc(2 * MIB) is not None  # from the page
    assert allocator.malloc(15 * MIB) is None


def test_flush_returns_free_pages_only() -> None:
    allocator = Allocator(EXPANDABLE)
    blocks = [live(allocator, size * MIB) for size in (15, 60, 15)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert layout(allocator) == [[(15, ALLOCATED), (5, INACTIVE)], [(15, INACTIVE), (15, ALLOCATED), (10, INACTIVE)]]


def test_hole_is_filled_before_the_end_grows() -> None:
    allocator = Allocator(EXPANDABLE)
    blocks = [live(allocator, size * MIB) for size in (15, 60, 15)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert live(allocator, 35 * MIB).address == blocks[1].address
    assert layout(allocator) == [
        [(15, ALLOCATED), (35, ALLOCATED), (25, INACTIVE), (15, ALLOCATED), (10, INACTIVE)],
    ]


def test_growable_block_counts_with_its_whole_span() -> None:
    """The last, smaller free block would fit, but torch saves it for a larger request."""
    allocator = Allocator(EXPANDABLE)
    blocks = [live(allocator, size * MIB) for size in (18, 4, 13)]
    allocator.free(blocks[0])
    assert live(allocator, 5 * MIB).address == blocks[0].address
    assert layout(allocator)[0][-1] == (5, INACTIVE)


def test_emptied_segment_returns_its_address_space() -> None:
    allocator = Allocator(EXPANDABLE)
    block = live(allocator, 15 * MIB)
    allocator.free(block)
    allocator.empty_cache()
    assert (allocator.heap().segments, allocator.reserved) == ((), 0)
    assert live(allocator, 15 * MIB).address == block.address


def test_pages_mapped_before_a_failure_stay() -> None:
    allocator = Allocator(EXPANDABLE, Driver(free=102 * MIB, size=1 << 40))
    blocks = [live(allocator, size * MIB) for size in (15, 60, 25)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert allocator.reserved == 60 * MIB  # a hole of two pages, and driver memory for as many
    allocator.free(blocks[2])
    assert allocator.malloc(110 * MIB) is None


def test_full_address_space_is_followed_by_another() -> None:
    allocator = Allocator(EXPANDABLE, Driver(size=160 * MIB))
    live(allocator, 170 * MIB)  # of 9/8 of the device: 180 MiB
    live(allocator, 20 * MIB)
    assert sorted(layout(allocator)) == [[(20, ALLOCATED)], [(170, ALLOCATED), (10, INACTIVE)]]


def test_inactive_split_leaves_expandable_segments_out() -> None:
    allocator = Allocator(EXPANDABLE)
    live(allocator, 15 * MIB)
    assert allocator.totals(small=False).inactive_split == 0


@pytest.mark.parametrize(
    ("reserve", "largest"),
    [(3 << 30, 3080 * MIB), (0.1, 8200 * MIB), (None, 81_380 * MIB)],
)
def test_no_request_is_larger_than_the_address_space_of_a_segment(reserve: int | float | None, largest: int) -> None:
    """The sizes are those of torch 2.15 on a device of 80 GiB."""
    driver = Driver(free=81_394 * MIB, size=80 << 30)
    settings = Settings(expandable_segments=True, expandable_segments_reserve=reserve)
    assert Allocator(settings, driver).malloc(largest) is not None
    assert Allocator(settings, driver).malloc(largest + 1) is None


def test_block_that_may_not_be_split_serves_a_request_without_new_pages() -> None:
    """Torch does not take it from the cache, but finds it as the place where the segment grows."""
    settings = Settings(expandable_segments=True, max_split_size=64 * MIB)
    allocator = Allocator(settings, Driver(free=90 * MIB))
    allocator.free(live(allocator, 80 * MIB))
    foreseen = allocator.foresee(12 * MIB, 0, DEFAULT_POOL)
    assert foreseen is not None
    assert not foreseen.flushes
    live(allocator, 12 * MIB)
    assert (allocator.reserved, allocator.counters.alloc_retries) == (80 * MIB, 0)
