"""The twin: a simulated allocator that follows a trace while it is read.

It has the state that the recorded allocator had before the current request, so it shows which explanation of the
following events is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..heap import DEFAULT_POOL
from ..simulator.allocator import Allocator
from ..simulator.blocks import Block
from ..simulator.supply import Foreseen
from .events import Event
from .program import (
    AWAIT,
    CAPACITY,
    COMPLETE,
    EMPTY,
    FAIL,
    FLUSH_OR_COLLECTION,
    FREE,
    MALLOC,
    RELEASE,
    Operation,
    Program,
    Replay,
)  # fmt: skip


class Explanation(NamedTuple):
    """How many completed blocks preceded a request, and what it released.

    foreseen: None if the allocator would not have done the same without a call of the program. if_full: both for a
    flush that explains it if another process had taken the driver's memory, else None.
    """

    early: int
    foreseen: Foreseen | None
    if_full: tuple[int, Foreseen] | None = None


class Growth(NamedTuple):
    """The driver memory that a request got, and the least one for this process that explains it, in bytes."""

    size: int
    capacity: int


class _Flush(NamedTuple):
    """A request that may have flushed the cache after `early` completed blocks; the best one is the largest.

    maps_at_once: whether it maps no pages in vain before the flush; a trace would show them.
    """

    maps_at_once: bool
    early: int
    foreseen: Foreseen


class Twin:
    """The operations read so far, and the allocator to which `run` applies them."""

    def __init__(self, allocator: Allocator, made: Sequence[Block]) -> None:
        self.allocator = allocator
        self.operations: list[Operation] = []
        self.doubts: Counter[str] = Counter()
        self.capacity = allocator.capacity
        """Driver memory for this process after the operations, in bytes; None if unknown."""
        self._replay = Replay(Program(self.operations, 0), allocator, made)

    def run(self) -> None:
        self._replay.run()

    def skip(self) -> None:
        """Regard the operations appended so far as done."""
        self._replay.position = len(self.operations)

    def last_request(self) -> int:
        """Return the position of the last successful request."""
        return next(at for at in range(len(self.operations) - 1, -1, -1) if self.operations[at].kind == MALLOC)

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        self.operations.append(Operation(CAPACITY, 0, capacity, 0, DEFAULT_POOL))

    def explain(
        self,
        operation: Operation,
        done: Sequence[Operation],
        gone: Sequence[Event],
        late: Sequence[Operation],
        retried: bool = False,
        growth: Growth | None = None,
    ) -> Explanation:
        """Return how many completed blocks preceded the request, and what the request released.

        The twin has then completed all blocks of the trail. growth: to look for `if_full` too.
        """
        flushes: list[_Flush] = []
        if_full: list[_Flush] = []
        freed = sum(event.size for event in gone)
        for count in range(len(done) + 1):
            foreseen = self.allocator.foresee(*operation[2:])
            if foreseen is not None and foreseen.flushes and begins_with(gone, foreseen.released):
                flushes.append(self._flush(operation, count, foreseen, self.capacity))
            if growth is not None and foreseen is not None:
                full = self.allocator.foresee(*operation[2:], full=True)
                # an expandable segment can need more pages after the flush than before it
                can_fail = not growth.size or growth.size < self.allocator.missing(*operation[2:]) + freed
                if full is not None and can_fail and begins_with(gone, full.released):
                    if_full.append(self._flush(operation, count, full, growth.capacity))
            if count < len(done):
                self._replay.complete(done[count].allocation)
        plain = (
            foreseen is not None
            and not (foreseen.flushes or late or retried)
            and len(gone) == len(foreseen.released)
            and begins_with(gone, foreseen.released)
        )
        for later in late:
            self._replay.complete(later.allocation)
        flush = max(flushes, default=None)
        if flush is not None and not self.is_flush(operation, flush.foreseen, gone):
            flush = None
        full_flush = max(if_full, default=None)
        if full_flush is not None:
            released, may_flush = full_flush.foreseen
            if not (may_flush and self.is_flush(operation, full_flush.foreseen, gone)):
                enough = 0 < len(gone) == len(released) and not late  # then it did not have to flush
                full_flush = full_flush._replace(foreseen=Foreseen(released, False)) if enough else None
        if plain and flush is not None:
            self.doubts[FLUSH_OR_COLLECTION] += 1
        last = next((op for op in reversed(self.operations) if op.kind != CAPACITY), None)
        waited = any(last is None or completed.allocation != last.allocation for completed in done)
        if plain and (flush is None or not waited):  # blocks that waited for a stream rather ended in a flush
            return Explanation(len(done), foreseen)
        if flush is None and retried:
            return Explanation(0, Foreseen([], True))
        if flush is None:
            return Explanation(len(done), None, None if full_flush is None else full_flush[1:])
        return Explanation(*flush[1:])

    def _flush(self, operation: Operation, early: int, foreseen: Foreseen, capacity: int | None) -> _Flush:
        return _Flush(not self.allocator.maps_in_vain(*operation[2:], capacity), early, foreseen)

    def is_flush(self, operation: Operation, foreseen: Foreseen, gone: Sequence[Event]) -> bool:
        """Return whether a flush explains the released segments; all blocks of the trail must be completed."""
        failed = operation.kind == FAIL
        freed = sum(event.size for event in gone)
        is_plain = not self.allocator.settings.expandable_segments
        if failed and gone and is_plain and self.allocator.has_room(*operation[2:], freed):
            return False
        expected = self.allocator.flush_sizes({event.pool for event in gone} - {DEFAULT_POOL, operation.pool})
        for block in foreseen.released:
            sizes = expected.get(block.arena.pool.id, [])
            if block.size in sizes:
                sizes.remove(block.size)
        rest = gone[len(foreseen.released) :]
        complete = all(
            sorted(sizes) == sorted(event.size for event in rest if event.pool == pool)
            for pool, sizes in expected.items()
        )
        return complete and not self.allocator.waits

    def flush(self, operation: Operation, released: Sequence[Block]) -> None:
        """Serve a request, or let it fail, with a flush, ignoring the cache; then append its operation."""
        self.run()
        block = self.allocator.malloc_flushed(*operation[2:], released)
        if block is not None and operation.kind == FAIL:
            self.allocator.free(block)
            block = None
        self._replay.blocks.append(block)
        self.operations.append(operation)

    def append_emptied(self, gone: Sequence[Event]) -> None:
        """Append the empty_cache that released these segments: of all pools, or of each private one that ended."""
        self.append_released(gone)
        pools = list(dict.fromkeys(event.pool for event in gone))
        if DEFAULT_POOL in pools:
            pools = [DEFAULT_POOL]
        self.operations += [Operation(EMPTY, 0, 0, 0, pool) for pool in pools]

    def append_released(self, gone: Iterable[Event]) -> None:
        """A private pool releases its segments once its graph or MemPool is gone."""
        pools = dict.fromkeys(event.pool for event in gone if event.pool != DEFAULT_POOL)
        self.operations += [Operation(RELEASE, 0, 0, 0, pool) for pool in pools]

    def append_completed(self, done: Iterable[Operation]) -> None:
        for operation in done:
            last = self.operations[-1]
            if last.kind == AWAIT and last.allocation == operation.allocation:
                if self._replay.position == len(self.operations):  # the twin has done the AWAIT
                    self._replay.complete(operation.allocation)
                self.operations[-1] = operation._replace(kind=FREE)
            else:
                self.operations.append(operation._replace(kind=COMPLETE))


def begins_with(gone: Sequence[Event], released: Sequence[Block]) -> bool:
    """Return whether the released segments are the first that went. The default pool may also mean that torch did not
    record which pool it was."""
    return len(gone) >= len(released) and all(
        event.size == block.size and event.pool in (DEFAULT_POOL, block.arena.pool.id)
        for event, block in zip(gone, released)
    )
