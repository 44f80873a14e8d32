"""Every quantity of one device's heap, in bytes, from a snapshot and a reading of the driver taken together."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .allocatable import Driver, largest_allocatable, main_stream, reclaimable_bytes
from .heap import ALLOCATED, INACTIVE, Heap, Segment
from .settings import Settings

SIZE_BOUNDS = tuple(512 * 4**n for n in range(13))
"""Upper bounds (inclusive) of the free-block histogram, 512 B to 8 GiB; a last bucket has the rest."""


@dataclass(frozen=True)
class Pool:
    """The default pool for large or for small requests; private pools are not included."""

    reserved: int = 0
    allocated: int = 0
    active: int = 0
    requested: int = 0
    inactive_split: int = 0
    """Free bytes of segments that have several blocks and are not expandable (torch's definition)."""
    free_cached: int = 0
    awaiting_free: int = 0
    """Freed, but a stream may still use it: active - allocated."""
    largest_free_block: int = 0
    largest_active_block: int = 0
    reclaimable: int = 0
    segments: int = 0
    active_blocks: int = 0
    awaiting_blocks: int = 0
    inactive_blocks: int = 0
    free_block_sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BOUNDS) + 1))
    """Number of inactive blocks per bucket of SIZE_BOUNDS, not cumulative."""

    def __post_init__(self) -> None:
        if len(self.free_block_sizes) != len(SIZE_BOUNDS) + 1:
            raise ValueError(f"expected {len(SIZE_BOUNDS) + 1} buckets, found {len(self.free_block_sizes)}")

    @property
    def stranded(self) -> int:
        """Free bytes pinned between live blocks: no flush returns them."""
        return self.free_cached + self.awaiting_free - self.reclaimable


@dataclass(frozen=True)
class Fragmentation:
    """All quantities of one device; None where the driver's figures are unknown."""

    device: int
    stream: int
    """The stream of largest_allocatable: by default the one with most reserved memory."""
    large: Pool
    small: Pool
    private_pool_reserved: int
    captive: int
    """Inactive bytes of private pools: in neither free_cached nor free_total."""
    limit: int | None
    headroom: int | None
    free_total: int | None
    largest_allocatable: int | None

    @property
    def reserved(self) -> int:
        return self.large.reserved + self.small.reserved + self.private_pool_reserved

    @property
    def active(self) -> int:
        """Of all pools, private ones included, like torch's own peak."""
        return self.large.active + self.small.active + self.private_pool_reserved - self.captive

    @property
    def free_cached(self) -> int:
        return self.large.free_cached + self.small.free_cached

    @property
    def reclaimable(self) -> int:
        return self.large.reclaimable + self.small.reclaimable

    @property
    def stranded(self) -> int:
        return self.large.stranded + self.small.stranded

    @property
    def largest_free_block(self) -> int:
        return max(self.large.largest_free_block, self.small.largest_free_block)

    @property
    def ratio(self) -> float | None:
        """free_total / largest_allocatable: 1 is perfect, above 4 triggers the alert; None if nothing fits."""
        return self.free_total / self.largest_allocatable if self.free_total and self.largest_allocatable else None

    @property
    def cache_ratio(self) -> float | None:
        """free_cached / largest_free_block: the ratio of the cache alone, often high in a healthy job."""
        return self.free_cached / self.largest_free_block if self.largest_free_block else None


def measure(heap: Heap, driver: Driver, stream: int | None = None) -> Fragmentation:
    """Return every quantity of a one-device heap.

    `stream` (a cudaStream_t as torch prints it) is the stream of the next request; None is the stream with most
    reserved memory. Raises ValueError for a heap of several devices.
    """
    if len(heap.devices) > 1:
        raise ValueError(f"measure one device at a time: this heap has {heap.devices}; use Heap.on_device")
    private = [segment for segment in heap.segments if segment.private]
    shared = [segment for segment in heap.segments if not segment.private]
    large = _pool([segment for segment in shared if not segment.small], heap.settings)
    small = _pool([segment for segment in shared if segment.small], heap.settings)
    private_reserved = sum([segment.size for segment in private])
    reserved = large.reserved + small.reserved + private_reserved
    stream = main_stream(heap) if stream is None else stream
    limit, headroom = driver.cap, driver.headroom(reserved)
    free = large.free_cached + large.awaiting_free + small.free_cached + small.awaiting_free
    return Fragmentation(
        device=heap.devices[0] if heap.devices else 0,
        stream=stream,
        large=large,
        small=small,
        private_pool_reserved=private_reserved,
        captive=sum([size for s in private for size, state in zip(s.sizes, s.states) if state is INACTIVE]),
        limit=limit,
        headroom=headroom,
        free_total=None if headroom is None else free + headroom,
        largest_allocatable=largest_allocatable(heap, driver, stream, reserved, large.reclaimable + small.reclaimable),
    )


def _pool(segments: Sequence[Segment], settings: Settings) -> Pool:
    live: list[int] = []
    awaiting: list[int] = []
    free: list[int] = []
    requested = inactive_split = reclaimable = 0
    for segment in segments:
        before = len(free)
        for size, asked, state in zip(segment.sizes, segment.requested, segment.states):
            if state is ALLOCATED:
                live.append(size)
                requested += asked
            elif state is INACTIVE:
                free.append(size)
            else:
                awaiting.append(size)
                requested += asked
        if len(segment.sizes) > 1 and not segment.expandable:
            inactive_split += sum(free[before:])
        reclaimable += reclaimable_bytes(segment, settings)
    allocated, awaiting_free, free_cached = sum(live), sum(awaiting), sum(free)
    counts = [0] * (len(SIZE_BOUNDS) + 1)
    for size, number in Counter(free).items():
        counts[bisect_left(SIZE_BOUNDS, size)] += number
    return Pool(
        reserved=allocated + awaiting_free + free_cached,
        allocated=allocated,
        active=allocated + awaiting_free,
        requested=requested,
        inactive_split=inactive_split,
        free_cached=free_cached,
        awaiting_free=awaiting_free,
        largest_free_block=max(free, default=0),
        largest_active_block=max(max(live, default=0), max(awaiting, default=0)),
        reclaimable=reclaimable,
        segments=len(segments),
        active_blocks=len(live),
        awaiting_blocks=len(awaiting),
        inactive_blocks=len(free),
        free_block_sizes=counts,
    )
