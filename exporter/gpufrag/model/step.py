"""One recorded step: the heap at its memory peak, from the heap at its end and the allocator's events.

The events give every address, so nothing is simulated: they are undone one by one, latest first. Only sizes have to
be derived, because an event holds the requested bytes: a block that was freed within the step has the rounded size,
or all the room up to the next block if torch would not have split it. Torch may have left up to 1 MiB more to a block
from before the step, which no event shows; torch's counter at the beginning does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ..errors import BadInput
from .heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, Heap, Segment
from .settings import SMALL_REQUEST, SMALL_SEGMENT, Settings
from .trace.events import ALLOC, FREE_COMPLETED, FREE_REQUESTED, GROWS, SHRINKS


class StepEvents(NamedTuple):
    """The allocator's events on one device in order, as columns of equal length; sizes in bytes.

    Reading 20,000 events must not hold up a training process: columns cost a tenth of one object per event.
    """

    actions: Sequence[str]
    addresses: Sequence[int]
    sizes: Sequence[int]
    streams: Sequence[int]


class Step(NamedTuple):
    """What one device did in a step; all sizes in bytes."""

    peak: Heap
    """The heap at the event after which most bytes were active."""
    peak_active: int
    start_active: int
    largest_request: int
    """0 if the step allocated nothing."""
    allocations: int
    requested: int
    """The sum of all requests."""


class _Block:
    """A block that was live within the step: after event `begin` and up to event `end`. A size of 0 is unknown."""

    __slots__ = ("address", "awaiting", "begin", "end", "requested", "size")

    def __init__(self, address: int, requested: int, size: int, awaiting: int, end: int) -> None:
        self.address, self.requested, self.size = address, requested, size
        self.begin, self.awaiting, self.end = -1, awaiting, end


def step_events(trace: Sequence[Mapping[str, Any]]) -> StepEvents:
    """Return torch's trace of one device as columns. Raises KeyError if an entry is not torch's."""
    return StepEvents(
        [entry["action"] for entry in trace],
        [entry.get("addr", 0) for entry in trace],  # an oom has none
        [entry["size"] for entry in trace],
        [entry["stream"] for entry in trace],
    )


def read_step(events: StepEvents, end: Heap, active_before: int | None = None) -> Step:
    """Return the peak of a step whose `events` lead to the one-device heap `end`.

    active_before: the bytes that were active before the first event, by torch's counter. Without it the peak can be too
    low, by up to 1 MiB for each block from before the step that the step freed.
    Raises BadInput if events are missing, or belong to another device or time.
    """
    count = len(events.actions)
    blocks, segment_events = _lifetimes(events, end, active_before)
    change = [0] * (count + 2)
    for block in blocks:
        change[block.begin + 1] += block.size
        change[block.end + 1] -= block.size
    active = list(accumulate(change[: count + 1]))
    peak_active = max(active)
    peak = active.index(peak_active)  # the state before event `peak`
    ranges = _Ranges(end)
    for index in segment_events:
        if index >= peak:
            ranges.undo(index, events)
    live = sorted([block for block in blocks if block.begin < peak <= block.end], key=_address)
    requests = [size for action, size in zip(events.actions, events.sizes) if action == ALLOC]
    heap = Heap(tuple(_filled(ranges.segments(), live, peak)), end.settings)
    return Step(heap, peak_active, active[0], max(requests, default=0), len(requests), sum(requests))


def _lifetimes(events: StepEvents, end: Heap, active_before: int | None) -> tuple[list[_Block], list[int]]:
    """All blocks of the step, and the indexes of its segment events, latest first."""
    actions, addresses, sizes, _ = events
    last = len(actions)
    live = {
        block.address: _Block(
            block.address, block.requested, block.size, last if block.state is ALLOCATED else -1, last
        )
        for segment in end.segments
        for block in segment.blocks()
        if block.state is not INACTIVE
    }
    rounded, ranges = _Rounded(end.settings), _Ranges(end)
    large = _LargeBlocks(rounded, ranges, live.values())
    ended: list[_Block] = []
    segment_events: list[int] = []
    for index in range(last - 1, -1, -1):
        action, address, size = actions[index], addresses[index], sizes[index]
        if action == ALLOC:
            found = live.pop(address, None)
            if found is None:
                raise BadInput(
                    f"event {index} allocates {address:#x}, which is neither freed later nor live at the end"
                )
            if rounded[size] > SMALL_REQUEST:
                large.begins(found)
            elif not found.size:
                found.size = rounded[size]
            found.begin = index
            ended.append(found)
        elif action == FREE_COMPLETED or (action == FREE_REQUESTED and address not in live):
            if address in live:
                raise BadInput(f"event {index} frees {address:#x}, which is live later without an allocation")
            awaiting = index if action == FREE_REQUESTED else -1  # unless its request to be freed follows
            live[address] = found = _Block(address, size, 0, awaiting, index)
            if rounded[size] > SMALL_REQUEST:
                large.ends(found)
        elif action == FREE_REQUESTED:
            live[address].awaiting = index
        elif action in GROWS or action in SHRINKS:
            ranges.undo(index, events)
            segment_events.append(index)
    unsure: list[_Block] = []
    for block in live.values():
        if not block.size:
            small = rounded[block.requested] <= SMALL_REQUEST
            block.size = rounded[block.requested] if small else large.size(block)
            if not small and large.may_have_tail(block):
                unsure.append(block)
    if active_before is not None:
        _add_tails(unsure, active_before - sum(block.size for block in live.values()))
    return [*ended, *live.values()], segment_events


def _add_tails(unsure: Iterable[_Block], missing: int) -> None:
    """Give the bytes that the events do not show to the blocks that may have them, the last one freed first.

    With one such block that is exact; with several the peak is at most `missing` too high, never too low.
    """
    blocks = sorted(unsure, key=lambda block: -block.end)
    if not 0 < missing <= SMALL_REQUEST * len(blocks):
        return  # the counter was read before or after another thread allocated
    for block in blocks:
        tail = min(missing, SMALL_REQUEST)
        block.size += tail
        missing -= tail


class _Rounded(dict[int, int]):
    """Requested bytes -> the bytes that torch rounds them to."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def __missing__(self, request: int) -> int:
        size = self[request] = self.settings.round(request)
        return size


class _LargeBlocks:
    """The live blocks above 1 MiB while events are undone: their neighbours decide the sizes that no event holds."""

    def __init__(self, rounded: _Rounded, ranges: _Ranges, live: Iterable[_Block]) -> None:
        self._rounded, self._ranges = rounded, ranges
        self._addresses = sorted([block.address for block in live if rounded[block.requested] > SMALL_REQUEST])
        self._bounds: dict[int, int] = {}
        """By address of a block: the lowest address at which another one began after it, while it lived."""

    def ends(self, block: _Block) -> None:
        insort(self._addresses, block.address)

    def begins(self, block: _Block) -> None:
        if not block.size:
            block.size = self.size(block)
        address = block.address
        at = bisect_left(self._addresses, address)
        if self._addresses[at : at + 1] != [address]:
            raise BadInput(f"the block at {address:#x} is allocated with another size than it has later")
        del self._addresses[at]
        self._bounds.pop(address, None)
        if at:
            before = self._addresses[at - 1]
            self._bounds[before] = min(address, self._bounds.get(before, address))

    def size(self, block: _Block) -> int:
        """No free block of the large pool is 1 MiB or smaller, so torch leaves a smaller rest to the block."""
        rounded, settings = self._rounded[block.requested], self._rounded.settings
        segment = self._segment(block)
        if segment.expandable:
            return rounded
        room = self._room(block, segment)
        unsplit = settings.max_split_size is not None and rounded >= settings.max_split_size
        return room if unsplit or room - rounded <= SMALL_REQUEST else rounded

    def may_have_tail(self, block: _Block) -> bool:
        """Whether a block that ended before the step may have begun up to 1 MiB after this one's requested bytes."""
        segment = self._segment(block)
        return not segment.expandable and self._room(block, segment) - self._rounded[block.requested] > SMALL_REQUEST

    def _segment(self, block: _Block) -> Segment:
        segment = self._ranges.at(block.address)
        if segment is None:
            raise BadInput(f"a block at {block.address:#x} is in no segment")
        return segment

    def _room(self, block: _Block, segment: Segment) -> int:
        address = block.address
        limits = [segment.address + segment.size]
        after = bisect_right(self._addresses, address)
        limits += self._addresses[after : after + 1]
        if address in self._bounds:
            limits.append(self._bounds[address])
        return min(limits) - address


class _Ranges:
    """The segments while events are undone, each without its blocks; mapped ranges are cut and joined."""

    def __init__(self, end: Heap) -> None:
        self._segments = {segment.address: _bare(segment, segment.address, segment.size) for segment in end.segments}
        self._starts = sorted(self._segments)
        self._device = end.devices[0] if end.segments else 0

    def segments(self) -> list[Segment]:
        return [self._segments[address] for address in self._starts]

    def at(self, address: int) -> Segment | None:
        """The segment that holds `address`."""
        index = bisect_right(self._starts, address)
        segment = self._segments[self._starts[index - 1]] if index else None
        return segment if segment is not None and address < segment.address + segment.size else None

    def undo(self, index: int, events: StepEvents) -> None:
        action, address, size = events.actions[index], events.addresses[index], events.sizes[index]
        if action in GROWS:
            self._remove(index, address, size)
        elif self.at(address) is not None or self.at(address + size - 1) is not None:
            raise BadInput(f"event {index} ({action}) returns {address:#x}, which is mapped later")
        else:
            self._add(address, size, events.streams[index], expandable=action == "segment_unmap")

    def _remove(self, index: int, address: int, size: int) -> None:
        owner = self.at(address)
        if owner is None or address + size > owner.address + owner.size:
            raise BadInput(f"event {index} maps {address:#x}, which is not mapped later")
        self._drop(owner)
        for start, stop in ((owner.address, address), (address + size, owner.address + owner.size)):
            if stop > start:
                self._put(_bare(owner, start, stop - start))

    def _add(self, address: int, size: int, stream: int, expandable: bool) -> None:
        """Private pools keep their segments through a step, so one that was returned is taken for a default one."""
        small = size == SMALL_SEGMENT
        added = Segment(self._device, address, stream, small, DEFAULT_POOL, expandable, (size,), (0,), (INACTIVE,))
        if expandable:
            for neighbour in (self._segments.get(address + size), self.at(address - 1)):
                if neighbour is not None and neighbour.expandable and neighbour.stream == stream:
                    self._drop(neighbour)
                    start = min(added.address, neighbour.address)
                    added = _bare(neighbour, start, added.size + neighbour.size)
        self._put(added)

    def _put(self, segment: Segment) -> None:
        self._segments[segment.address] = segment
        insort(self._starts, segment.address)

    def _drop(self, segment: Segment) -> None:
        del self._segments[segment.address]
        del self._starts[bisect_left(self._starts, segment.address)]


def _bare(segment: Segment, address: int, size: int) -> Segment:
    return segment._replace(address=address, sizes=(size,), requested=(0,), states=(INACTIVE,))


def _address(block: _Block) -> int:
    return block.address


def _filled(segments: Iterable[Segment], live: Sequence[_Block], peak: int) -> Iterable[Segment]:
    """The segments with the blocks that were live before event `peak`, and free blocks between them."""
    addresses = [block.address for block in live]
    for segment in segments:
        end = segment.address + segment.size
        columns: list[tuple[int, int, str]] = []
        at = segment.address
        for block in live[bisect_left(addresses, at) : bisect_left(addresses, end)]:
            if block.address < at or block.address + block.size > end:
                raise BadInput(f"the block at {block.address:#x} overlaps another block or its segment's end")
            if block.address > at:
                columns.append((block.address - at, 0, INACTIVE))
            columns.append((block.size, block.requested, ALLOCATED if peak <= block.awaiting else AWAITING))
            at = block.address + block.size
        if end > at:
            columns.append((end - at, 0, INACTIVE))
        sizes, requested, states = zip(*columns)
        yield segment._replace(sizes=sizes, requested=requested, states=states)
