"""fragmentation.measure, checked with figures recorded on an H200 and with properties of any heap."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import SIZE_BOUNDS, Fragmentation, Pool, measure
from gpufrag.model.heap import parse
from helpers import GoldenCase
from strategies import AWAITING, INACTIVE, LIVE, MIB, drivers, reserved_by, segment, snapshots

Raw = dict[str, Any]
POOLS = {"large": "large_pool", "small": "small_pool"}
FIGURES = {
    "reserved": "reserved_bytes",
    "allocated": "allocated_bytes",
    "active": "active_bytes",
    "requested": "requested_bytes",
    "inactive_split": "inactive_split_bytes",
    "segments": "segment",
}
"""Our names and torch's."""


def measured(*segments: Raw, driver: Driver = Driver(), **settings: Any) -> Fragmentation:
    return measure(parse({"segments": segments, "allocator_settings": settings}), driver)


@pytest.mark.parametrize("pool", POOLS)
def test_sums_equal_torchs_statistics(golden_case: GoldenCase, pool: str) -> None:
    ours: Pool = getattr(measure(golden_case.heap, golden_case.driver), pool)
    figures = {name: getattr(ours, name) for name in FIGURES}
    stats = golden_case.raw["stats"]
    if golden_case.heap.settings.expandable_segments:
        figures["segments"] = 0  # torch does not count expandable ones
    assert figures == {name: stats[f"{theirs}.{POOLS[pool]}.current"] for name, theirs in FIGURES.items()}
    assert ours.active_blocks + ours.awaiting_blocks == stats[f"active.{POOLS[pool]}.current"]


def test_segment_has_these_quantities() -> None:
    blocks = [(6 * MIB, LIVE), (10 * MIB, INACTIVE), (3 * MIB, AWAITING), (1 * MIB, INACTIVE)]
    large = measured(segment(0, blocks, waste=512)).large
    assert large == Pool(
        reserved=20 * MIB,
        allocated=6 * MIB,
        active=9 * MIB,
        requested=9 * MIB - 1024,
        inactive_split=11 * MIB,
        free_cached=11 * MIB,
        awaiting_free=3 * MIB,
        largest_free_block=10 * MIB,
        largest_active_block=6 * MIB,
        reclaimable=0,
        segments=1,
        active_blocks=1,
        awaiting_blocks=1,
        inactive_blocks=2,
        free_block_sizes=[0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0],
    )
    assert large.stranded == 14 * MIB


def test_segment_without_live_blocks_is_reclaimable() -> None:
    found = measured(segment(0, [(12 * MIB, INACTIVE), (8 * MIB, AWAITING)]))
    assert (found.reclaimable, found.stranded) == (20 * MIB, 0)


def test_free_pages_of_expandable_segment_are_reclaimable() -> None:
    blocks = [(5 * MIB, LIVE), (50 * MIB, INACTIVE), (5 * MIB, LIVE)]
    found = measured(segment(0, blocks, is_expandable=True), expandable_segments=True)
    assert (found.reclaimable, found.stranded) == (20 * MIB, 30 * MIB)
    assert found.large.inactive_split == 0  # as torch counts it


def test_small_pages_have_2_mib() -> None:
    blocks = [(1 * MIB, LIVE), (6 * MIB, INACTIVE), (1 * MIB, LIVE)]
    small = segment(0, blocks, is_expandable=True, segment_type="small")
    assert measured(small, expandable_segments=True).reclaimable == 4 * MIB


def test_private_pool_is_captive_only() -> None:
    private = segment(0, [(6 * MIB, LIVE), (14 * MIB, INACTIVE)], segment_pool_id=(0, 1))
    found = measured(private, driver=Driver(free=0, size=1 << 30))
    assert (found.reserved, found.private_pool_reserved, found.captive) == (20 * MIB, 20 * MIB, 14 * MIB)
    assert (found.free_cached, found.reclaimable, found.free_total) == (0, 0, 0)


def test_figures_without_driver_are_none() -> None:
    found = measured(segment(0, [(20 * MIB, INACTIVE)]))
    assert (found.limit, found.headroom, found.free_total, found.largest_allocatable, found.ratio) == (None,) * 5


def test_empty_heap_has_no_cache_ratio() -> None:
    found = measured(driver=Driver(free=1 << 30, size=1 << 34))
    assert (found.cache_ratio, found.free_total) == (None, 1 << 30)


def test_ratio_compares_all_free_bytes_with_the_largest_request() -> None:
    blocks = [(8 * MIB, INACTIVE), (4 * MIB, LIVE), (8 * MIB, INACTIVE)]
    assert measured(segment(0, blocks), driver=Driver(free=0, size=1 << 30)).ratio == 2


def test_full_heap_has_no_ratio() -> None:
    found = measured(segment(0, [(2 * MIB, LIVE)], segment_type="small"), driver=Driver(free=0, size=1 << 30))
    assert (found.largest_allocatable, found.ratio) == (0, None)


def test_limit_below_reserved_leaves_no_headroom() -> None:
    found = measured(segment(0, [(20 * MIB, LIVE)]), driver=Driver(free=1 << 30, size=1 << 34, limit=10 * MIB))
    assert (found.headroom, found.limit) == (0, 10 * MIB)


def test_default_stream_is_the_largest() -> None:
    mine, other = segment(0, [(20 * MIB, INACTIVE)], stream=7), segment(1 << 30, [(24 * MIB, INACTIVE)], stream=9)
    assert measured(mine, other).stream == 9


def test_several_devices_are_refused() -> None:
    first, second = segment(0, [(20 * MIB, LIVE)]), segment(0, [(20 * MIB, LIVE)], device=1)
    with pytest.raises(ValueError, match="one device at a time"):
        measured(first, second)


def test_size_on_a_bound_is_counted_below_it() -> None:
    sizes = [512, 1024, 2048, 2560]
    counts = measured(segment(0, [(size, INACTIVE) for size in sizes], segment_type="small")).small.free_block_sizes
    assert counts[:3] == [1, 2, 1]
    assert SIZE_BOUNDS[:2] == (512, 2048)


def test_histogram_with_other_buckets_is_refused() -> None:
    for buckets in (1, 13, 15):
        with pytest.raises(ValueError, match=f"expected 14 buckets, found {buckets}"):
            Pool(free_block_sizes=[0] * buckets)


def test_empty_pool_has_an_empty_histogram() -> None:
    assert Pool().free_block_sizes == [0] * 14


def test_sums_cover_both_pools_and_private_ones() -> None:
    small = segment(1 << 30, [(MIB, LIVE), (MIB, INACTIVE)], segment_type="small")
    private = segment(2 << 30, [(5 * MIB, LIVE), (15 * MIB, INACTIVE)], segment_pool_id=(0, 1))
    found = measured(segment(0, [(12 * MIB, LIVE), (8 * MIB, INACTIVE)]), small, private)
    assert (found.active, found.reserved) == (18 * MIB, 42 * MIB)
    assert (found.free_cached, found.largest_free_block, found.cache_ratio) == (9 * MIB, 8 * MIB, 9 / 8)


def test_size_above_the_last_bound_is_in_the_last_bucket() -> None:
    sizes = [8 << 30, (8 << 30) + 512, 1 << 38]
    assert SIZE_BOUNDS[-1] == 8 << 30
    assert measured(segment(0, [(size, INACTIVE) for size in sizes])).large.free_block_sizes == [0] * 12 + [1, 2]


@st.composite
def heaps_with_drivers(draw: st.DrawFn) -> tuple[Raw, Driver]:
    divisions = draw(st.sampled_from((0, 2, 4)))
    split = draw(st.sampled_from((-1, 64 * MIB)))
    table = {str(1 << interval): divisions for interval in range(16)}
    snapshot = draw(snapshots(roundup_power2_divisions=table, max_split_size=split))
    return snapshot, draw(drivers(reserved_by(snapshot)))


@given(heaps_with_drivers())
def test_every_byte_is_counted_once(case: tuple[Raw, Driver]) -> None:
    snapshot, driver = case
    found = measure(parse(snapshot), driver)
    awaiting = found.large.awaiting_free + found.small.awaiting_free
    assert found.reserved == reserved_by(snapshot)
    assert found.free_cached + awaiting == found.reclaimable + found.stranded
    for pool in (found.large, found.small):
        assert pool.reserved == pool.active + pool.free_cached
        assert pool.active == pool.allocated + pool.awaiting_free
        assert 0 <= pool.reclaimable <= pool.reserved - pool.allocated
        assert pool.largest_free_block <= pool.free_cached
        assert sum(pool.free_block_sizes) == pool.inactive_blocks
        assert pool.inactive_split <= pool.free_cached
    assert found.captive <= found.private_pool_reserved


@given(heaps_with_drivers())
def test_largest_allocatable_is_at_most_free_total(case: tuple[Raw, Driver]) -> None:
    snapshot, driver = case
    found = measure(parse(snapshot), driver)
    if found.largest_allocatable is not None and found.free_total is not None:
        assert found.largest_allocatable <= found.free_total
        assert found.largest_allocatable % 512 == 0
        assert found.ratio is None or found.ratio >= 1


@given(heaps_with_drivers(), st.randoms(use_true_random=False))
def test_order_of_segments_does_not_matter(case: tuple[Raw, Driver], rng: random.Random) -> None:
    snapshot, driver = case
    shuffled = {**snapshot, "segments": rng.sample(snapshot["segments"], len(snapshot["segments"]))}
    assert measure(parse(shuffled), driver) == measure(parse(snapshot), driver)
