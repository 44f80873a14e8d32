"""MemPools whose blocks are not split (torch >= 2.10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..heap import INACTIVE, Heap, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, Settings
from ..simulator.blocks import Pool
from .events import ALLOC, FREE_COMPLETED, FREE_REQUESTED, GROWS, OOM, SHRINKS, Event, has_completions


def unsplit_pools(events: Sequence[Event], end: Heap, older: Iterable[Segment] = ()) -> frozenset[tuple[int, int]]:
    """Return the MemPools created with no_split, as far as the trace and its last heap show it.

    Each private pool is followed under both assumptions. One is refuted by a block at an address that it does not
    explain, by new memory although a free block was large enough, or by a block of `end` with a rest that other pools
    split off. older: the segments from before the trace; what happens in them shows only that a pool does split.
    """
    settings = end.settings
    private = dict.fromkeys(event.pool for event in events if event.pool[1])  # a graph's pool is always split
    if settings.torch < (2, 10):
        return frozenset()
    whole, split = ({pool: _Blocks(settings, unsplit) for pool in private} for unsplit in (True, False))
    completes = has_completions(events)
    call = 0
    for event in events if private else ():
        if event.pool in whole:
            for blocks in (whole[event.pool], split[event.pool]):
                blocks.follow(event, call, completes)
        if event.action in (ALLOC, FREE_REQUESTED, OOM):
            call += 1
    from_before = {segment.pool for segment in older}
    proven = {segment.pool for segment in end.segments if segment.private and _has_unsplit_block(segment, settings)}
    proven.update(pool for pool, blocks in split.items() if blocks.are_refuted and pool not in from_before)
    splits = {segment.pool for segment in end.segments if len(segment.sizes) > 1 and not segment.expandable}
    splits.update(pool for pool, blocks in whole.items() if blocks.are_refuted)
    return frozenset(proven - splits)


_Place = tuple[int, bool, int]
"""Stream, whether the blocks are small ones, and the address of a plain segment or 0."""


class _Blocks:
    """The blocks of one private pool under the assumption that it splits them, or that it does not."""

    def __init__(self, settings: Settings, unsplit: bool) -> None:
        self.are_refuted = False
        self._settings = settings
        self._unsplit = unsplit
        self._free: dict[int, tuple[int, _Place]] = {}
        """End and place by address."""
        self._starts: dict[tuple[int, _Place], int] = {}
        """Address by end and place."""
        self._live: dict[int, tuple[int, _Place]] = {}
        self._freed: dict[int, int] = {}
        """The call in which a free block changed last, by address."""
        self._new: list[int] = []

    def follow(self, event: Event, call: int, completes: bool) -> None:
        """Follow an event; `call` is the number of calls before it."""
        if self.are_refuted:
            return
        action, address, end = event.action, event.address or 0, (event.address or 0) + event.size
        if action in GROWS:
            place = event.stream, event.size == SMALL_SEGMENT, address if action == "segment_alloc" else 0
            self._new.append(address)
            self._add(address, end, place, call)
        elif action in SHRINKS:
            self._remove(address, end)
        elif action == OOM:
            self.are_refuted |= any(self._fitting(event, event.size, call))
            self._new = []
        elif action == ALLOC:
            self._put(address, call)
            self._take(event, call)
            self._new = []
        elif action == FREE_COMPLETED or not completes:
            self._put(address, call)

    def _take(self, event: Event, call: int) -> None:
        address, size = event.address or 0, self._settings.round(event.size)
        end, place = self._free.get(address, (0, (0, False, 0)))
        if end - address < size or (self._new and any(start != address for start in self._fitting(event, size, call))):
            self.are_refuted = True
            return
        pool = Pool(self._settings, place[1], event.pool, not place[2], self._unsplit)
        self._drop(address)
        if end - address - size > pool.tail and size < pool.splits_below:
            self._add(address + size, end, place, call - 1)
            end = address + size
        self._live[address] = end, place

    def _fitting(self, event: Event, size: int, call: int) -> Iterator[int]:
        """Yield the free blocks that could serve a request without new memory, and were there when it began."""
        least = self._settings.max_split_size
        for start, (end, place) in self._free.items():
            alike = place[:2] == (event.stream, size <= SMALL_REQUEST) and size <= end - start
            known = alike and self._freed[start] < call and (least is None or end - start < least)
            if known and not any(start <= new < end for new in self._new):
                yield start

    def _put(self, address: int, call: int) -> None:
        if address in self._live:
            self._add(address, *self._live.pop(address), call)

    def _add(self, start: int, end: int, place: _Place, call: int) -> None:
        """Add a free block, merged with its free neighbours of the same segment."""
        before = self._starts.get((start, place))
        if before is not None:
            call = max(call, self._freed[before])
            self._drop(before)
            start = before
        if end in self._free and self._free[end][1] == place:
            call = max(call, self._freed[end])
            end = self._drop(end)
        self._free[start] = end, place
        self._starts[end, place] = start
        self._freed[start] = call

    def _drop(self, address: int) -> int:
        end, place = self._free.pop(address)
        del self._starts[end, place]
        return end

    def _remove(self, start: int, end: int) -> None:
        """Remove free memory."""
        if self._free.get(start, (0,))[0] == end:  # the usual case
            self._drop(start)
            return
        for address, (stop, place) in [*self._free.items()]:
            if address < end and start < stop:
                call = self._freed[address]
                self._drop(address)
                for part in ((address, start), (end, stop)):
                    if part[0] < part[1]:
                        self._add(*part, place, call)


def _has_unsplit_block(segment: Segment, settings: Settings) -> bool:
    """Return whether a block is larger than its request by so much that torch splits it in other pools."""
    tail = MIN_BLOCK - 1 if segment.small or segment.expandable else SMALL_REQUEST
    largest = None if segment.small or segment.expandable else settings.max_split_size
    for size, requested, state in zip(segment.sizes, segment.requested, segment.states):
        wanted = settings.round(requested)
        if state is not INACTIVE and requested and size - wanted > tail and (largest is None or wanted < largest):
            return True
    return False
