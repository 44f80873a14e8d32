"""Failed requests: which pool they were made in, and whether they flushed the cache before they failed."""

from __future__ import annotations

from collections.abc import Sequence

from ..heap import DEFAULT_POOL
from ..simulator.supply import Foreseen
from .events import ALLOC, OOM, Event
from .pools import UNKNOWN_POOL
from .program import FAIL, FAIL_IN_CAPTURE, FLUSH_OR_CAPTURE, FLUSH_OR_PRIVATE_POOL, MALLOC, Operation
from .twin import Twin

REQUESTS = (MALLOC, FAIL, FAIL_IN_CAPTURE)


class Failures:
    """Decides about the failed requests of a trace, as far as its events and the twin show it."""

    def __init__(self, events: Sequence[Event], twin: Twin) -> None:
        self._events = events
        self._twin = twin
        self._captured: set[tuple[int, int]] = set()
        self.flushing: set[tuple[int, int]] = set()
        """Private pools of which a request flushed the cache, so they belong to MemPools."""
        self._unclear: list[int] = []

    def append_in_capture(self, operation: Operation) -> None:
        """Append a request that failed without a flush."""
        if operation.pool != DEFAULT_POOL:
            self._captured.add(operation.pool)
        self._twin.operations.append(operation._replace(kind=FAIL_IN_CAPTURE))
        self._twin.run()

    def note_unclear(self, index: int) -> None:
        """Operation `index` failed and released nothing, in a flush or in a capture; the rest of the trace may tell."""
        self._unclear.append(index)

    def settle(self) -> None:
        """Decide about the unclear ones at the end of the trace."""
        operations = self._twin.operations
        for index in self._unclear:
            operation = operations[index]
            if operation.pool in self._captured:
                operations[index] = operation._replace(kind=FAIL_IN_CAPTURE)
            elif operation.pool not in self.flushing:
                self._twin.doubts[FLUSH_OR_CAPTURE] += 1

    def is_in_capture(self, at: int) -> bool:
        """Return whether the requests around event `at` belong to a CUDA graph.

        A request of the default pool on another stream then cannot flush the cache.
        """
        return all(
            is_of_graph(pool) or pool in self._captured for pool in self._pools_around(at, REQUESTS, (ALLOC, OOM))
        )

    def place(self, operation: Operation, foreseen: Foreseen | None, at: int, waited: bool) -> Operation:
        """Return a failed request of unknown pool, event `at`, with a pool that explains it, or as FAIL_IN_CAPTURE.

        It released nothing. foreseen: what it does in the default pool, None if it cannot have failed there after a
        flush. waited: blocks became free before it, as in a flush.
        """
        self._twin.doubts[FLUSH_OR_PRIVATE_POOL] += 1  # which pools have memory is inferred too
        pools = self._pools_around(at, (MALLOC,), (ALLOC,))
        if not self._fails_alone(*operation[2:]):
            own = [pool for pool in pools if pool != DEFAULT_POOL]
            exhausted = [pool for pool in own if self._fails_alone(operation.size, operation.stream, pool)]
            return operation._replace(kind=FAIL_IN_CAPTURE, pool=[*exhausted, UNKNOWN_POOL][0])
        is_flush = foreseen is not None and foreseen.flushes and (DEFAULT_POOL in pools or waited)
        return operation if is_flush else operation._replace(kind=FAIL_IN_CAPTURE)

    def place_by_release(self, operation: Operation, gone: Sequence[Event]) -> Operation:
        """Return the request as FAIL_IN_CAPTURE if it released the segments of its own pool in vain."""
        pool = gone[0].pool
        own = self._twin.allocator.foresee(operation.size, operation.stream, pool)
        if own is not None and [block.size for block in own.released] == [event.size for event in gone]:
            return operation._replace(kind=FAIL_IN_CAPTURE, pool=pool)
        return operation

    def _fails_alone(self, request: int, stream: int, pool: tuple[int, int]) -> bool:
        """Return whether a request fails in the pool, without a flush, and releases nothing."""
        allocator = self._twin.allocator
        foreseen = allocator.foresee(request, stream, pool)
        return foreseen is not None and not foreseen.released and not allocator.has_memory(request, stream, pool)

    def _pools_around(
        self, at: int, kinds: Sequence[int], actions: Sequence[str]
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the pools of the requests before and after event `at`; the default pool where there is none."""
        before = next((op.pool for op in reversed(self._twin.operations) if op.kind in kinds), DEFAULT_POOL)
        later = range(at + 1, len(self._events))
        after = next((self._events[i].pool for i in later if self._events[i].action in actions), DEFAULT_POOL)
        return before, after


def is_of_graph(pool: tuple[int, int]) -> bool:
    """Return whether a pool belongs to a CUDA graph alone; torch numbers those of users in the second place."""
    return pool[0] > 0
