"""The largest request that a job makes again and again, told from which blocks come and go between snapshots.

A block that was live at one snapshot and gone at a later one was not made for good: the job allocates, frees, and
will allocate it again. A parameter, made once, never goes. Only the large pool is looked at: what is up to 1 MiB
decides nothing. Private pools serve their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .heap import ALLOCATED, Heap

WINDOW = 3600.0
"""Seconds for which a request that was seen to come and go is expected to come again."""


class Gone(NamedTuple):
    """At `time` a request of `size` bytes had ended."""

    time: float
    size: int


@dataclass(frozen=True)
class Recurrence:
    """What one device's snapshots have told so far; feed it to `observe` with the next one."""

    live: frozenset[tuple[int, int]] = frozenset()
    """Address and requested bytes of the blocks at the last snapshot."""
    gone: tuple[Gone, ...] = ()
    """Latest last, each smaller than the one before: a larger one makes all earlier ones moot."""

    def largest(self, time: float) -> int | None:
        """In bytes; None where nothing has come and gone within the last hour."""
        return next((gone.size for gone in self.gone if gone.time > time - WINDOW), None)


def observe(before: Recurrence, heap: Heap, time: float) -> Recurrence:
    """`before` and a snapshot of one device's heap, taken at `time` (seconds, never going back)."""
    live = frozenset(_live(heap))
    ended = max((size for _, size in before.live - live), default=0)
    kept = tuple(gone for gone in before.gone if gone.size > ended and gone.time > time - WINDOW)
    return Recurrence(live, (*kept, Gone(time, ended)) if ended else kept)


def _live(heap: Heap) -> Iterator[tuple[int, int]]:
    for segment in heap.segments:
        if not segment.small and not segment.private:
            yield from [(block.address, block.requested) for block in segment.blocks() if block.state is ALLOCATED]
