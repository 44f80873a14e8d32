"""The largest single request that would succeed now: torch's allocation path, computed backwards.

A cached block of its pool and stream serves a request, or the driver does. Before the allocator gives up it waits for
all streams, returns every free segment (of an expandable one: every free page) and asks the driver again, so the state
after that flush counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .heap import ALLOCATED, INACTIVE, Heap, Segment
from .settings import MIN_BLOCK, MIN_OWN_SEGMENT, SEGMENT_GRID, SMALL_REQUEST, SMALL_SEGMENT, Settings

UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Driver:
    """The driver's figures at the snapshot; None if unknown.

    free and size are those of cudaMemGetInfo. limit is what set_per_process_memory_fraction allows, in bytes; None if
    no fraction is set.
    """

    free: int | None = None
    size: int | None = None
    limit: int | None = None

    @staticmethod
    def usable(free: int) -> int:
        """Return what the driver allocates when it reports `free` bytes.

        It allocates neither the last whole 2 MiB nor a part of 2 MiB: on an H200 the largest cudaMalloc was 3,276,800
        bytes below cudaMemGetInfo's figure at every level and granularity of use (benchmarks/driver_reserve.py).
        """
        return max(0, free // SEGMENT_GRID - 1) * SEGMENT_GRID

    @property
    def cap(self) -> int | None:
        """The most this process may reserve: its limit, else the device's size."""
        known = [bound for bound in (self.limit, self.size) if bound is not None]
        return min(known, default=None)

    def headroom(self, reserved: int) -> int | None:
        """Return min(driver free, cap - reserved), at least 0; None if neither is known."""
        room = [] if self.free is None else [self.free]
        if self.cap is not None:
            room.append(self.cap - reserved)
        return max(0, min(room)) if room else None


def limited(driver: Driver, settings: Settings) -> Driver:
    """Return the driver with the limit of the settings, unless the process set another one."""
    fraction = settings.per_process_memory_fraction
    if driver.limit is not None or driver.size is None or fraction >= 1:
        return driver
    return replace(driver, limit=round(fraction * driver.size))


class Hole(NamedTuple):
    """A run without live blocks in an expandable segment, after a flush."""

    span: int
    """Its address space; UNBOUNDED at the end of the segment."""
    edge: int
    """Free mapped bytes before its first unmapped page."""
    pages: int
    """Bytes of its unmapped pages, UNBOUNDED at the end of the segment."""


def main_stream(heap: Heap) -> int:
    """Return the stream with most reserved memory in the default pools, 0 if there is none."""
    shared = [segment for segment in heap.segments if not segment.private]
    streams = {segment.stream for segment in shared}
    if len(streams) < 2:  # the usual case, and a heap may have thousands of segments
        return min(streams, default=0)
    reserved = dict.fromkeys(streams, 0)
    for segment in shared:
        reserved[segment.stream] += segment.size
    return min(reserved, key=lambda stream: (-reserved[stream], stream))


def reclaimable_bytes(segment: Segment, settings: Settings) -> int:
    """Return the bytes of one segment that a flush returns: all of it, its free pages, or none."""
    if ALLOCATED not in segment.states:
        return segment.size
    if not segment.expandable:
        return 0
    page = settings.page_size(segment.small)
    return sum(max(0, end // page - -(-start // page)) * page for start, end in _free_runs(segment))


def largest_allocatable(heap: Heap, driver: Driver, stream: int, reserved: int, reclaimable: int) -> int | None:
    """Return the largest request on `stream` that would succeed now, to 512 bytes; None if the driver is unknown.

    `reserved` and `reclaimable` are the heap's sums (the first includes private pools, the second does not). A MemPool
    with use_on_oom may serve more; no snapshot shows it.
    """
    if driver.free is None and driver.limit is None:
        return None
    settings = heap.settings
    kept = reserved - reclaimable
    allowed = UNBOUNDED if driver.cap is None else max(0, driver.cap - kept)
    physical = UNBOUNDED if driver.free is None else driver.usable(driver.free + reclaimable)
    if settings.expandable_segments:
        fresh = _largest_mapped(heap, stream, driver, allowed, physical)
    else:
        fresh = _largest_segment(settings, min(allowed, physical))
    return max(_largest_cached(heap, stream), fresh)


def _largest_cached(heap: Heap, stream: int) -> int:
    """Return the largest request that a cached block serves, without the driver."""
    settings = heap.settings
    # once expandable segments are off, the allocator ignores blocks of existing ones
    usable = [
        s
        for s in heap.segments
        if s.stream == stream and not s.private and (settings.expandable_segments or not s.expandable)
    ]
    small = max((size for s in usable if s.small for size in _inactive(s)), default=0)
    large = sorted(size for s in usable if not s.small for size in _inactive(s))
    requests = (settings.largest_request(size) for size in reversed(large))
    best = next((request for request in requests if _best_fit_serves(request, large, settings)), 0)
    return max(best, settings.largest_request(min(small, SMALL_REQUEST)))


def _inactive(segment: Segment) -> list[int]:
    return [size for size, state in zip(segment.sizes, segment.states) if state is INACTIVE]


def _best_fit_serves(request: int, sizes: Sequence[int], settings: Settings) -> bool:
    """Return whether the smallest block that holds `request`, the only one torch considers, may serve it."""
    if request <= SMALL_REQUEST:
        return False  # belongs to the small pool
    block = sizes[bisect_left(sizes, request)]
    split = settings.max_split_size
    if split is None or block < split:
        return True
    return request >= split and block < request + settings.max_non_split_rounding


def _largest_segment(settings: Settings, room: int) -> int:
    """Return the largest request that a new segment serves within `room` bytes."""
    tops = (room // SEGMENT_GRID * SEGMENT_GRID, MIN_OWN_SEGMENT - MIN_BLOCK, SMALL_REQUEST)
    requests = (settings.largest_request(min(top, room)) for top in tops)
    return next((request for request in requests if request > 0 and settings.segment_size(request) <= room), 0)


def _largest_mapped(heap: Heap, stream: int, driver: Driver, allowed: int, physical: int) -> int:
    """Like _largest_segment for expandable ones: the limit counts the whole request, the driver the missing pages."""
    settings = heap.settings
    page = settings.page_size(small=False)
    pages = physical // page * page
    holes = list(_holes(heap, stream, driver))
    fits = [
        request
        for top in (allowed // SEGMENT_GRID * SEGMENT_GRID, MIN_OWN_SEGMENT - MIN_BLOCK)
        for hole in holes
        if (request := settings.largest_request(min(top, _reach(hole, pages)))) > SMALL_REQUEST
        and settings.segment_size(request) <= allowed
        and _lands_in(holes, request, pages)
    ]
    small = settings.largest_request(SMALL_REQUEST) if min(allowed, physical) >= SMALL_SEGMENT else 0
    return max(fits, default=small)


def _reach(hole: Hole, pages: int) -> int:
    """Return the largest block that fits the hole if the driver can map `pages` bytes of whole pages."""
    return hole.span if hole.pages <= pages else hole.edge + pages


def _lands_in(holes: Sequence[Hole], request: int, pages: int) -> bool:
    """Torch takes the first hole with enough address space, and fails if the driver cannot fill it."""
    return request <= _reach(next(hole for hole in holes if hole.span >= request), pages)


def _holes(heap: Heap, stream: int, driver: Driver) -> Iterator[Hole]:
    """Yield where a large request on `stream` may be mapped, in torch's order."""
    page = heap.settings.page_size(small=False)
    reserve = heap.settings.address_space(False, driver.size) or UNBOUNDED
    ranges = [s for s in heap.segments if s.expandable and not s.private and not s.small and s.stream == stream]
    addresses = [segment.address for segment in heap.segments]
    for mapped in _by_reservation(ranges, reserve):
        end = next((at for at in addresses if at > mapped[-1].address), 2 * UNBOUNDED)
        # where the full reservation does not fit below the next segment, it begins with unmapped pages
        unmapped = 0 if reserve == UNBOUNDED else max(0, -(-(mapped[0].address + reserve - end) // page) * page)
        yield from _holes_of(mapped, page, mapped[0].address - unmapped + reserve, unmapped)
    yield Hole(reserve, 0, reserve)  # a new expandable segment


def _by_reservation(ranges: Sequence[Segment], reserve: int) -> Iterator[list[Segment]]:
    """Yield the mapped ranges of each reserved address range, lowest first."""
    start = 0
    for index, segment in enumerate(ranges):
        if index > start and segment.address + segment.size > ranges[start].address + reserve:
            yield list(ranges[start:index])
            start = index
    if ranges:
        yield list(ranges[start:])


def _holes_of(mapped: Sequence[Segment], page: int, end: int, unmapped: int) -> Iterator[Hole]:
    """Yield the holes of one reservation that ends at address `end`; `unmapped` bytes precede its first range."""
    edge, pages, tail = 0, unmapped, 0  # of the current run without live blocks
    gaps = [after.address for after in mapped[1:]] + [end]
    for segment, gap_end in zip(mapped, gaps):
        walked = 0
        for start, stop in _free_runs(segment):
            if start > walked:  # live blocks lie between: the run so far is complete
                if pages:
                    yield Hole(edge + pages + tail, edge, pages)
                edge = pages = tail = 0
            first, last = -(-start // page) * page, stop // page * page
            if last > first:
                edge, pages, tail = edge + (0 if pages else first - start), pages + last - first, stop - last
            elif pages:
                tail += stop - start
            else:
                edge += stop - start
            walked = stop
        size = segment.size
        if walked < size:
            if pages:
                yield Hole(edge + pages + tail, edge, pages)
            edge = pages = tail = 0
        pages += gap_end - segment.address - size
    yield Hole(edge + pages, edge, pages)


def _free_runs(segment: Segment) -> Iterator[tuple[int, int]]:
    """Yield runs without live blocks, as offsets into the segment; blocks that wait for a stream count as free."""
    at = 0
    start: int | None = None
    for size, state in zip(segment.sizes, segment.states):
        if state is ALLOCATED:
            if start is not None:
                yield start, at
                start = None
        elif start is None:
            start = at
        at += size
    if start is not None:
        yield start, at
