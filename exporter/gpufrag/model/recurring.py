"""The largest request that a job makes repeatedly, from the blocks that come and go between snapshots.

A block that is live at one snapshot and gone at a later one is temporary: the job will allocate it again. Parameters
stay. Small requests and private pools do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .heap import ALLOCATED, Heap

WINDOW = 3600.0
"""Seconds after which a request is no longer expected again."""


class Gone(NamedTuple):
    """A request of `size` bytes had ended by `time`."""

    time: float
    size: int


@dataclass(frozen=True)
class Recurrence:
    """State from one device's snapshots; pass it to `observe` with the next one."""

    live: frozenset[tuple[int, int]] = frozenset()
    """Address and requested bytes of the blocks at the last snapshot."""
    gone: tuple[Gone, ...] = ()
    """Newest last, each smaller than the previous one: a larger one replaces all earlier ones."""

    def largest(self, time: float) -> int | None:
        """Return the largest in bytes; None if no block came and went within WINDOW."""
        return next((gone.size for gone in self.gone if gone.time > time - WINDOW), None)


def observe(before: Recurrence, heap: Heap, time: float) -> Recurrence:
    """Return the state after a snapshot of one device's heap at `time` (monotonic seconds)."""
    live = frozenset(_live(heap))
    ended = max((size for _, size in before.live - live), default=0)
    kept = tuple(gone for gone in before.gone if gone.size > ended and gone.time > time - WINDOW)
    return Recurrence(live, (*kept, Gone(time, ended)) if ended else kept)


def _live(heap: Heap) -> Iterator[tuple[int, int]]:
    for segment in heap.segments:
        if not segment.small and not segment.private:
            yield from [(block.address, block.requested) for block in segment.blocks() if block.state is ALLOCATED]
