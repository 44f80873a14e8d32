"""A trace read backwards: from the heap at its end to the heap at its beginning.

A trace seldom begins with the process. Undoing its events reveals what was live before: a block that is freed existed
before, one that is allocated did not. The same applies to segments and mapped pages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import BadInput
from ..heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, MOST, Heap, Segment
from ..settings import SMALL_REQUEST, SMALL_SEGMENT, Settings
from .columns import Trace
from .events import ALLOC, FREE_COMPLETED, FREE_REQUESTED, GROWS, SHRINKS, Event

LOST_POOL = (0, MOST)
"""Stands for a private pool that ended: before torch 2.5 none was expandable, so each plain segment was in one."""


@dataclass(frozen=True)
class Beginning:
    """The state when a trace began: the blocks as allocations in address order, and the heap; and the events."""

    allocations: tuple[Event, ...]
    heap: Heap
    events: Sequence[Event]


def rewind(events: Sequence[Event], end: Heap) -> Beginning:
    """Return the beginning of a trace that ends in the one-device heap `end`.

    The events record only the requested size of a block that was freed within the trace. Its own size is the rounded
    one plus the tail that torch would not split off, limited by blocks that began after it during its life. Raises
    BadInput if the events do not lead to `end`: the trace has gaps, or belongs to another device or time.
    """
    heap = heaps_at(events if isinstance(events, Trace) else Trace(events), end, [0])[0]
    return Beginning(tuple(allocations(heap.segments)), heap, events)


def heaps_at(
    trace: Trace,
    end: Heap,
    moments: Iterable[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, Heap]:
    """Return the one-device heap after the first n events, for each n of `moments`, in one pass backwards.

    Blocks that wait for a stream count as allocated. Raises BadInput as `rewind` does.
    """
    blocks, ranges = _Blocks(end), _Ranges(end)
    heaps: dict[int, Heap] = {}
    filled: dict[int, tuple[Segment, Sequence[_Live], Segment]] = {}  # by address: most are the same at many moments
    others, last = list(trace.others), len(trace)
    for moment in sorted(set(moments), reverse=True):
        blocks.undo(trace, moment, last)
        while others and others[-1] >= moment:
            index = others.pop()
            if (event := trace[index]).action in GROWS or event.action in SHRINKS:
                ranges.undo(index, event)
        live = blocks.live()
        for segment in ranges.segments():
            inside, known = _within(live, segment), filled.get(segment.address)
            if known is None or known[:2] != (segment, inside):
                filled[segment.address] = segment, inside, _fill(segment, inside, end.settings)
        heaps[moment] = Heap(tuple(filled[segment.address][2] for segment in ranges.segments()), end.settings)
        last = moment
        progress(len(trace) - last, len(trace))
    return heaps


def allocations(segments: Sequence[Segment]) -> Iterator[Event]:
    for segment in segments:
        for block in segment.blocks():
            if block.state is ALLOCATED:
                yield Event(ALLOC, block.address, block.requested, segment.stream, segment.pool)


class _Live(NamedTuple):
    """A live block; `size` is None if only its requested bytes are known, and that it ended at or before `end`."""

    address: int
    requested: int
    size: int | None
    end: int | None


def _within(live: Sequence[_Live], segment: Segment) -> Sequence[_Live]:
    first = bisect_left(live, (segment.address,))
    return live[first : bisect_left(live, (segment.address + segment.size,), first)]


class _Blocks:
    """The live blocks while events are undone: requested bytes by address, and sizes where known."""

    def __init__(self, end: Heap) -> None:
        blocks = [block for segment in end.segments for block in segment.blocks() if block.state is not INACTIVE]
        self._requested = {block.address: block.requested for block in blocks}
        self._sizes = {block.address: block.size for block in blocks}
        self._awaiting = {block.address for block in blocks if block.state is AWAITING}
        self._unsized: list[int] = []  # addresses of the live blocks of unknown size, in order
        self._ends: dict[int, int] = {}

    def undo(self, trace: Trace, first: int, last: int) -> None:
        """Undo the events `first` to `last` of a trace, all in one call: a call per event takes twice the time."""
        requested, sizes, awaiting = self._requested, self._sizes, self._awaiting
        unsized, ends = self._unsized, self._ends
        columns = (reversed(each[first:last]) for each in (trace.actions, trace.addresses, trace.sizes))
        for index, action, address, size in zip(range(last - 1, first - 1, -1), *columns):
            if action is ALLOC:
                if requested.pop(address, None) is None:
                    raise _allocated_and_gone(index, address)
                at = bisect_left(unsized, address)
                if sizes.pop(address, None) is None and address in ends:
                    del ends[address], unsized[at]
                if at and ends[before := unsized[at - 1]] > address:  # it had ended where this block began
                    ends[before] = address
                continue
            if action is FREE_COMPLETED and address in requested and address not in awaiting:
                raise _freed_and_live(index, address)
            if action is FREE_COMPLETED or (action is FREE_REQUESTED and address not in requested):
                requested[address] = size
                if size > SMALL_REQUEST and address not in sizes:  # a small block is never larger than rounded
                    insort(unsized, address)
                    ends[address] = MOST
            if awaiting:
                awaiting.discard(address)

    def live(self) -> list[_Live]:
        """By address."""
        sizes, ends = self._sizes, self._ends
        return [_Live(at, self._requested[at], sizes.get(at), ends.get(at)) for at in sorted(self._requested)]


def _freed_and_live(index: int, address: int) -> BadInput:
    return BadInput(f"event {index} frees {address:#x}, which is live later without an allocation")


def _allocated_and_gone(index: int, address: int) -> BadInput:
    return BadInput(
        f"event {index} allocates {address:#x}, which is neither freed later nor live at the end: the trace has gaps, "
        "or it and the segments are not from one run"
    )


class _Ranges:
    """The segments while events are undone, each without its blocks; mapped ranges are cut and joined."""

    def __init__(self, end: Heap) -> None:
        self._segments = {segment.address: _bare(segment, segment.address, segment.size) for segment in end.segments}
        self._starts = sorted(self._segments)
        self._device = end.devices[0] if end.devices else 0
        only_private = end.settings.expandable_segments and end.settings.torch < (2, 5)
        self._plain_pool = LOST_POOL if only_private else DEFAULT_POOL

    def undo(self, index: int, event: Event) -> None:
        assert event.address is not None
        if event.action in SHRINKS:
            if self._touches(event.address, event.size):
                raise BadInput(
                    f"event {index} ({event.action}) releases {event.address:#x}, mapped later without an event"
                )
            self._add(event, event.address)
        elif not self._remove(event.address, event.size):
            raise BadInput(f"event {index} ({event.action}) maps {event.address:#x}, which is not mapped later")

    def segments(self) -> list[Segment]:
        return [self._segments[address] for address in self._starts]

    def _add(self, event: Event, address: int) -> None:
        expandable = event.action == "segment_unmap"
        small = event.size == SMALL_SEGMENT
        pool = self._plain_pool if event.pool == DEFAULT_POOL and not expandable else event.pool
        segment = Segment(
            self._device, address, event.stream, small, pool, expandable, (event.size,), (0,), (INACTIVE,)
        )
        self._put(self._joined(segment) if expandable else segment)

    def _joined(self, segment: Segment) -> Segment:
        """Add it to the adjacent mapped ranges of the same stream, which also reveal their pool."""
        after = self._segments.get(segment.address + segment.size)
        if after is not None and _join(after, segment):
            self._drop(after)
            segment = _bare(after, segment.address, segment.size + after.size)
        before = self._at_or_before(segment.address)
        if before is not None and before.address + before.size == segment.address and _join(before, segment):
            self._drop(before)
            segment = _bare(before, before.address, before.size + segment.size)
        return segment

    def _remove(self, address: int, size: int) -> bool:
        owner = self._at_or_before(address)
        if owner is None or address + size > owner.address + owner.size:
            return False
        self._drop(owner)
        for start, stop in ((owner.address, address), (address + size, owner.address + owner.size)):
            if stop > start:
                self._put(_bare(owner, start, stop - start))
        return True

    def _touches(self, address: int, size: int) -> bool:
        """Return whether part of it is already mapped."""
        last = self._at_or_before(address + size - 1)
        return last is not None and last.address + last.size > address

    def _at_or_before(self, address: int) -> Segment | None:
        index = bisect_right(self._starts, address)
        return self._segments[self._starts[index - 1]] if index else None

    def _put(self, segment: Segment) -> None:
        self._segments[segment.address] = segment
        insort(self._starts, segment.address)

    def _drop(self, segment: Segment) -> None:
        del self._segments[segment.address]
        del self._starts[bisect_left(self._starts, segment.address)]


def _join(one: Segment, other: Segment) -> bool:
    return one.expandable and one.stream == other.stream


def _bare(segment: Segment, address: int, size: int) -> Segment:
    return segment._replace(address=address, sizes=(size,), requested=(0,), states=(INACTIVE,))


def _fill(segment: Segment, live: Sequence[_Live], settings: Settings) -> Segment:
    """Return the segment, which has no blocks, with its live blocks, and free blocks between them."""
    if not live:
        return segment
    sizes: list[int] = []
    requested: list[int] = []
    states: list[str] = []
    at, end = segment.address, segment.address + segment.size
    limits = [block.address for block in live[1:]] + [end]
    for (address, asked, size, known_end), limit in zip(live, limits):
        if address > at:
            sizes.append(address - at)
            requested.append(0)
            states.append(INACTIVE)
        whole = size or _probable_size(segment, settings, asked, min(limit, known_end or limit) - address)
        sizes.append(whole)
        requested.append(asked)
        states.append(ALLOCATED)
        at = address + whole
    if end > at:
        sizes.append(end - at)
        requested.append(0)
        states.append(INACTIVE)
    return segment._replace(sizes=tuple(sizes), requested=tuple(requested), states=tuple(states))


def _probable_size(segment: Segment, settings: Settings, asked: int, room: int) -> int:
    """Return the size of a block for `asked` bytes with `room` bytes up to the next block."""
    size = settings.round(asked)
    if segment.expandable or segment.small:
        return min(size, room)
    unsplit = settings.max_split_size is not None and size >= settings.max_split_size
    return room if unsplit or room - size <= SMALL_REQUEST else size
