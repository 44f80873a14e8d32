"""The live blocks that pin free memory, by call site, and what moving them elsewhere would gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .allocatable import Driver
from .call_sites import Stack
from .fragmentation import Fragmentation, measure
from .heap import ALLOCATED, INACTIVE, Block, Heap, Segment

MOST = 5
"""Call sites whose gain is computed."""
_ELSEWHERE = 1 << 62
"""Address of the moved blocks."""


@dataclass(frozen=True)
class Culprit:
    """A call site whose live blocks pin free bytes. The bytes of several culprits add up: none counts twice."""

    stack: Stack
    blocks: int
    size: int
    """Bytes of these blocks."""
    pins: int
    """Its share of the stranded bytes: a segment's are divided equally among the call sites that pin it."""
    unpinned: int | None = None
    """Stranded bytes that become reclaimable if its blocks were elsewhere, after those of the culprits before it."""
    allocatable: int | None = None
    """By how much largest_allocatable grows then; None if the driver is unknown."""


def culprits(heap: Heap, driver: Driver, sites: Mapping[int, Stack]) -> list[Culprit]:
    """Return the call sites that pin free bytes in a one-device heap, largest share first; the first MOST with gains.

    sites: the call site of live blocks by address; a block without one belongs to the empty stack.
    """
    shares: dict[Stack, int] = {}
    pinning: dict[Stack, list[int]] = {}
    for address, share in stranded_shares(heap, sites).items():
        site = sites.get(address, ())
        shares[site] = shares.get(site, 0) + share
        pinning.setdefault(site, []).append(address)
    sizes = {block.address: block.size for segment in heap.segments for block in segment.blocks()}
    found = []
    for site, share in shares.items():
        addresses = pinning[site]
        found.append(Culprit(site, len(addresses), sum(sizes[address] for address in addresses), share))
    found.sort(key=lambda culprit: (-culprit.pins, culprit.stack))
    return [*_with_gains(heap, driver, found[:MOST], pinning), *found[MOST:]]


def stranded_shares(heap: Heap, sites: Mapping[int, Stack]) -> dict[int, int]:
    """Return the stranded bytes that each pinning block accounts for, by its address; they add up to all of them.

    A segment's are divided equally among its call sites, and those of a call site among its blocks.
    """
    shares: dict[int, int] = {}
    for stranded, blocks in _pins(heap):
        by_site: dict[Stack, list[int]] = {}
        for block in blocks:
            by_site.setdefault(sites.get(block.address, ()), []).append(block.address)
        for part, site in zip(_divided(stranded, len(by_site)), sorted(by_site)):
            for share, address in zip(_divided(part, len(by_site[site])), by_site[site]):
                shares[address] = shares.get(address, 0) + share
    return shares


def _divided(size: int, count: int) -> Iterator[int]:
    each, rest = divmod(size, count)
    return (each + (index < rest) for index in range(count))


def _with_gains(
    heap: Heap, driver: Driver, found: Sequence[Culprit], pinning: Mapping[Stack, Sequence[int]]
) -> Iterator[Culprit]:
    """Move the blocks of one culprit after the other: each gain is on top of those before it."""
    gone: set[int] = set()
    before = measure(heap, driver)
    freed, reached = 0, before.largest_allocatable
    for culprit in found:
        gone.update(pinning[culprit.stack])
        after = measure_without(heap, driver, gone.__contains__, before.stream)
        unpinned = max(freed, before.stranded - after.stranded)
        allocatable = None
        if reached is not None and after.largest_allocatable is not None:
            allocatable = max(0, after.largest_allocatable - reached)
            reached += allocatable
        yield replace(culprit, unpinned=unpinned - freed, allocatable=allocatable)
        freed = unpinned


def measure_without(
    heap: Heap, driver: Driver, moved: Callable[[int], bool], stream: int | None = None
) -> Fragmentation:
    """Measure the heap as if the live blocks at addresses that `moved` accepts were in one full segment elsewhere."""
    segments, size = [], 0
    for segment in heap.segments:
        states = []
        for block in segment.blocks():
            gone = block.state is ALLOCATED and not segment.private and moved(block.address)
            size += block.size if gone else 0
            states.append(INACTIVE if gone else block.state)
        segments.append(_merged(segment, states) if INACTIVE in states else segment)
    if size:
        device = heap.segments[0].device
        segments.append(Segment(device, _ELSEWHERE, 0, False, (0, 0), False, (size,), (size,), (ALLOCATED,)))
        driver = driver if driver.free is None else replace(driver, free=max(0, driver.free - size))
    return measure(Heap(tuple(segments), heap.settings), driver, stream)


def _merged(segment: Segment, states: Sequence[str]) -> Segment:
    """Return the segment with these states, adjacent free blocks joined."""
    sizes, requested, kept = [], [], []
    for free, group in groupby(zip(segment.sizes, segment.requested, states), key=lambda row: row[2] is INACTIVE):
        rows = list(group)
        if free:
            rows = [(sum(size for size, _, _ in rows), 0, INACTIVE)]
        for size, asked, state in rows:
            sizes.append(size)
            requested.append(asked)
            kept.append(state)
    return segment._replace(sizes=tuple(sizes), requested=tuple(requested), states=tuple(kept))


def _pins(heap: Heap) -> Iterator[tuple[int, list[Block]]]:
    """Yield stranded bytes and the blocks that pin them: of a segment, or of a free run in an expandable segment.

    Blocks that wait for a stream count as free: a flush waits for it.
    """
    for segment in heap.segments:
        if segment.private or ALLOCATED not in segment.states:
            continue
        if segment.expandable:
            yield from _pins_of_runs(segment, heap.settings.page_size(segment.small))
            continue
        live = [block for block in segment.blocks() if block.state is ALLOCATED]
        stranded = segment.size - sum(block.size for block in live)
        if stranded > 0:
            yield stranded, live


def _pins_of_runs(segment: Segment, page: int) -> Iterator[tuple[int, list[Block]]]:
    before: list[Block] = []
    run = 0
    for block in segment.blocks():
        if block.state is not ALLOCATED:
            run += block.size
            continue
        start = block.address - segment.address - run
        if (stranded := run - _whole_pages(start, start + run, page)) > 0:
            yield stranded, [*before, block]
        before, run = [block], 0
    if (stranded := run - _whole_pages(segment.size - run, segment.size, page)) > 0:
        yield stranded, before


def _whole_pages(start: int, end: int, page: int) -> int:
    return max(0, end // page - -(-start // page)) * page
