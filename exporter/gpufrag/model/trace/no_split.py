"""MemPools whose blocks are not split (torch >= 2.10)."""

from __future__ import annotations

from collections.abc import Sequence

from ..allocatable import UNBOUNDED
from ..heap import DEFAULT_POOL, INACTIVE, Heap, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, Settings
from .events import ALLOC, FREE_REQUESTED, GROWS, OOM, Event


def unsplit_pools(events: Sequence[Event], end: Heap) -> frozenset[tuple[int, int]]:
    """Return the MemPools created with no_split, as far as the trace and its last heap show it.

    In such a pool every block is at a segment's start. It is proven by a block of `end` with a rest that another pool
    would have split off, or by a new segment although the rest of another one was large enough.
    """
    settings = end.settings
    if settings.torch < (2, 10):
        return frozenset()
    made: dict[int, int] = {}
    new: set[int] = set()
    live: dict[int, tuple[Event, int]] = {}  # in private pools: the allocation, and the rest of its segment
    private = [segment for segment in end.segments if segment.private]
    split = {segment.pool for segment in private if len(segment.sizes) > 1 and not segment.expandable}
    proven = {segment.pool for segment in private if _has_unsplit_block(segment, settings)}
    for event in events:
        address, pool = event.address, event.pool
        if event.action == FREE_REQUESTED and address is not None:
            live.pop(address, None)
        if pool == DEFAULT_POOL or address is None:
            continue
        if event.action in GROWS:
            made[address] = event.size
            new.add(address)
        elif event.action in (ALLOC, OOM):
            size = event.size if event.action == OOM else settings.round(event.size)
            taken = UNBOUNDED if event.action == OOM or address in new else made.get(address, 0)
            alike = [(other, left) for other, left in live.values() if left and _is_alike(event, other, settings)]
            if any(size <= left < taken for _, left in alike):
                proven.add(pool)
            ends = {(other.address or 0) + made.get(other.address or 0, 0) for other, _ in alike}
            if settings.expandable_segments and address in new and address in ends:
                proven.add(pool)  # the pages extend a segment, but not its free end
            if event.action == ALLOC:
                if address not in made:
                    split.add(pool)
                new.discard(address)
                whole = settings.max_split_size is not None and size >= settings.max_split_size
                left = 0 if whole else made.get(address, 0) - size
                live[address] = event, left if size <= SMALL_REQUEST or left > SMALL_REQUEST else 0
    return frozenset(proven - split)


def _is_alike(one: Event, other: Event, settings: Settings) -> bool:
    """Return whether both requests are served from the same blocks of a private pool."""
    small = [settings.round(event.size) <= SMALL_REQUEST for event in (one, other)]
    return (one.stream, one.pool, small[0]) == (other.stream, other.pool, small[1])


def _has_unsplit_block(segment: Segment, settings: Settings) -> bool:
    """Return whether a block is larger than its request by so much that torch splits it in other pools."""
    tail = MIN_BLOCK - 1 if segment.small or segment.expandable else SMALL_REQUEST
    largest = None if segment.small or segment.expandable else settings.max_split_size
    for size, requested, state in zip(segment.sizes, segment.requested, segment.states):
        wanted = settings.round(requested)
        if state is not INACTIVE and requested and size - wanted > tail and (largest is None or wanted < largest):
            return True
    return False
