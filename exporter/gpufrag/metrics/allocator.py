"""The rows about torch's caching allocator: one process, one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.fragmentation import Pool
from ..model.reach import Driver
from .row import COUNTER, GAUGE, HISTOGRAM, Metric, Sizes
from .sources import DEVICE, FREE, FREE_POOL, SNAPSHOT, SNAPSHOT_POOL, TOTALS, TOTALS_POOL, OnDevice


def _blocks(pool: Pool) -> Mapping[str, int]:
    return {"allocated": pool.active_blocks, "awaiting_free": pool.awaiting_blocks, "free": pool.inactive_blocks}


def _sizes(pool: Pool) -> Sizes:
    return Sizes(pool.free_block_sizes, pool.free_cached)


def _limit(place: OnDevice) -> int | None:
    driver = place.sample.driver
    return Driver(size=driver.size if driver else None, limit=place.sample.limit).cap


ALLOCATOR: tuple[Metric[Any], ...] = (
    Metric(
        "gpufrag_allocator_allocated_bytes", GAUGE, TOTALS_POOL, lambda pool: pool.allocated,
        "Bytes in blocks that tensors hold now, rounding included.",
    ),
    Metric(
        "gpufrag_allocator_requested_bytes", GAUGE, TOTALS_POOL, lambda pool: pool.requested,
        "Bytes that the program asked for, of the blocks in active: active - requested is lost to rounding and to "
        "blocks that are too large for their request.",
    ),
    Metric(
        "gpufrag_allocator_active_bytes", GAUGE, TOTALS_POOL, lambda pool: pool.active,
        "Allocated bytes and those that are freed but still wait for a stream to be done with them "
        "(active - allocated).",
    ),
    Metric(
        "gpufrag_allocator_reserved_bytes", GAUGE, TOTALS_POOL, lambda pool: pool.reserved,
        "Bytes that the allocator has taken from the driver, used or not. "
        "(reserved - allocated) / reserved is the unused share: below 0.2 is fine, above 0.4 is waste.",
    ),
    Metric(
        "gpufrag_allocator_inactive_split_bytes", GAUGE, TOTALS_POOL, lambda pool: pool.inactive_split,
        "Free bytes beside used ones in the same segment, as torch counts them: it cannot give them back to the "
        "driver. Always 0 with expandable segments; read stranded there.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_free_cached_bytes", GAUGE, FREE_POOL, lambda pool: pool.free_cached,
        "Free bytes that the allocator keeps for later requests: no tensor uses them, no other process can.",
    ),
    Metric(
        "gpufrag_allocator_largest_free_block_bytes", GAUGE, FREE_POOL, lambda pool: pool.largest_free_block,
        "The largest piece of free_cached: a larger request cannot be served from the cache.",
    ),
    Metric(
        "gpufrag_allocator_largest_active_block_bytes", GAUGE, SNAPSHOT_POOL, lambda pool: pool.largest_active_block,
        "The largest block in use: of what size the job's requests can be.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_reclaimable_bytes", GAUGE, SNAPSHOT_POOL, lambda pool: pool.reclaimable,
        "What the allocator gives back to the driver by itself before it raises an out-of-memory error: segments "
        "without a live block, with expandable segments also whole free pages.",
    ),
    Metric(
        "gpufrag_allocator_stranded_bytes", GAUGE, SNAPSHOT_POOL, lambda pool: pool.stranded,
        "Free bytes pinned between live blocks (free_cached + awaiting a stream - reclaimable): torch's empty_cache "
        "does not bring them back. This is the memory that fragmentation costs.",
    ),
    Metric(
        "gpufrag_allocator_segments", GAUGE, SNAPSHOT_POOL, lambda pool: pool.segments,
        "Segments that the allocator holds, each one allocation of the driver (with expandable segments: one mapped "
        "range).",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_blocks", GAUGE, SNAPSHOT_POOL, _blocks,
        "Blocks by state: allocated (in use), awaiting_free (freed, but a stream still uses it), free.",
        adds=("state",), detail=True,
    ),
    Metric(
        "gpufrag_allocator_free_block_size_bytes", HISTOGRAM, SNAPSHOT_POOL, _sizes,
        "How the free blocks are spread over sizes: much memory in small blocks is what fragmentation looks like.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_free_total_bytes", GAUGE, FREE, lambda measured: measured.free_total,
        "All that this process could still get if nothing lay in the way: its free blocks and headroom. "
        "free_total / largest_allocatable is the fragmentation ratio: 1 is perfect, above 4 is trouble.",
    ),
    Metric(
        "gpufrag_allocator_largest_allocatable_bytes", GAUGE, FREE, lambda measured: measured.largest_allocatable,
        "The largest single request that would succeed now, after all that the allocator does by itself to serve it. "
        "A larger one is an out-of-memory error.",
    ),
    Metric(
        "gpufrag_allocator_headroom_bytes", GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.headroom,
        "What the process may still take from the driver: the smaller of the device's free memory and "
        "limit - reserved. The same as free_total - reclaimable - stranded.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_captive_bytes", GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.captive,
        "Free bytes in private pools (CUDA graphs, MemPool): only their own pool can use them; in neither free_cached "
        "nor free_total.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_private_pool_reserved_bytes", GAUGE, SNAPSHOT,
        lambda snapshot: snapshot.measured.private_pool_reserved,
        "Bytes of all segments of private pools (CUDA graphs, MemPool), used or not; torch counts them in reserved "
        "too.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_limit_bytes", GAUGE, DEVICE, _limit,
        "The most that the process may reserve: its set_per_process_memory_fraction, else the size of the device.",
    ),
    Metric(
        "gpufrag_allocator_largest_recurring_bytes", GAUGE, DEVICE, lambda place: place.sample.largest_recurring,
        "The largest request that the job was seen to make again and again within the last hour. Above "
        "largest_allocatable, the next of them fails.",
    ),
    Metric(
        "gpufrag_allocator_peak_active_bytes", GAUGE, TOTALS, lambda totals: totals.peak_active,
        "The most that was active at once since the process began or its peaks were reset, as torch counted it. "
        "1 - peak_active / peak_reserved is the peak fragmentation that papers report.",
    ),
    Metric(
        "gpufrag_allocator_peak_reserved_bytes", GAUGE, TOTALS, lambda totals: totals.peak_reserved,
        "The most that was reserved at once since the process began or its peaks were reset.",
    ),
    Metric(
        "gpufrag_allocator_alloc_retries_total", COUNTER, TOTALS, lambda totals: totals.counters.alloc_retries,
        "Times the driver refused and the allocator flushed its cache and asked again. Each stalls the job; a steady "
        "rate means that it thrashes.",
    ),
    Metric(
        "gpufrag_allocator_ooms_total", COUNTER, TOTALS, lambda totals: totals.counters.ooms,
        "Out-of-memory errors that the allocator raised, those that the program caught and survived included.",
    ),
    Metric(
        "gpufrag_allocator_device_allocs_total", COUNTER, TOTALS, lambda totals: totals.counters.device_allocs,
        "Times the allocator asked the driver for memory (cudaMalloc, or mapping a page). In a settled job this "
        "stands still.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_device_frees_total", COUNTER, TOTALS, lambda totals: totals.counters.device_frees,
        "Times the allocator gave memory back to the driver. Each waits for the device.",
        detail=True,
    ),
    Metric(
        "gpufrag_allocator_stream_syncs_total", COUNTER, TOTALS, lambda totals: totals.counters.stream_syncs,
        "Times the allocator had to wait for streams before it could flush its cache.",
        detail=True,
    ),
    Metric(
        "gpufrag_snapshot_timestamp_seconds", GAUGE, SNAPSHOT, lambda snapshot: snapshot.time,
        "When the latest snapshot of this moment was taken; every metric with the label `at` is as old as this.",
    ),
    Metric(
        "gpufrag_snapshot_duration_seconds", GAUGE, SNAPSHOT, lambda snapshot: snapshot.duration,
        "For how long the latest snapshot held up the process.",
        detail=True,
    ),
    Metric(
        "gpufrag_snapshot_active_bytes", GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.active,
        "Active bytes at the snapshot, private pools included. Beside peak_active it tells how near the snapshot came "
        "to the true peak.",
    ),
)  # fmt: skip
