"""How a heap's memory lies, for maps: the state of each block, and of equal parts of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .heap import ALLOCATED, INACTIVE, Heap, Segment
from .settings import Settings

LIVE, AWAITING, STRANDED, RECLAIMABLE, CAPTIVE = "lwsrc"
"""States of a block in a map: in use, waits for a stream, free and pinned, free and returnable, free in a private
pool."""
CELLS = 512


def map_states(segment: Segment, settings: Settings) -> Iterable[str]:
    """Yield the state of each block. In an expandable segment, a free block with a whole page can be returned."""
    page = settings.page_size(segment.small) if segment.expandable else 0
    empty = ALLOCATED not in segment.states
    start = 0
    for size, state in zip(segment.sizes, segment.states):
        if state is not INACTIVE:
            yield LIVE if state is ALLOCATED else AWAITING
        elif segment.private:
            yield CAPTIVE
        else:
            whole = page and -(-start // page) * page + page <= start + size
            yield RECLAIMABLE if empty or whole else STRANDED
        start += size


def cells(heap: Heap, count: int = CELLS) -> str:
    """Return a state for each of `count` equal parts of the reserved memory, by address; empty for an empty heap.

    The state is that of most of its bytes, or STRANDED if a quarter of them is.
    """
    part = -(-sum(segment.size for segment in heap.segments) // count)
    found: list[str] = []
    inside: Counter[str] = Counter()
    room = part
    for segment in heap.segments:
        for size, state in zip(segment.sizes, map_states(segment, heap.settings)):
            while size >= room:
                inside[state] += room
                found.append(_state(inside))
                inside.clear()
                whole, size = divmod(size - room, part)
                found += state * whole
                room = part
            inside[state] += size
            room -= size
    if room < part:
        found.append(_state(inside))
    return "".join(found)


def _state(inside: Counter[str]) -> str:
    return STRANDED if 4 * inside[STRANDED] >= sum(inside.values()) else max(inside, key=inside.__getitem__)
