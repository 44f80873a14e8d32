"""Requests that a MemPool with use_on_oom may have served for the default pool (torch 2.8 to 2.10)."""

from __future__ import annotations

from ..heap import DEFAULT_POOL
from .program import BORROW, FLUSH_OR_MEMPOOL, MALLOC, Operation
from .twin import Twin


class Lending:
    """Follows the runs of requests in one MemPool.

    Those releases flush before they look in a MemPool, and the trace shows the same events for a request in it. A run
    of requests in one pool cannot have been made after flushes if one of them had another source of memory.
    """

    def __init__(self, twin: Twin, capacity_changes: bool) -> None:
        self._twin = twin
        self._capacity_changes = capacity_changes
        self._is_possible = (2, 8) <= twin.allocator.settings.torch < (2, 11)
        self._lent: list[int] = []
        """Requests of the current run that may have come after a flush: their operations."""
        self._pool = DEFAULT_POOL
        self._in_pool = False

    def note(self, operation: Operation, grown: bool) -> None:
        """Take note of the operation appended last, a request; `grown`: it needed new memory."""
        if not self._is_possible:
            return
        if operation.pool != self._pool:
            self.end_run()
            self._pool = operation.pool
        if operation.pool[1]:
            twin, request = self._twin, (operation.size, operation.stream)
            if operation.kind == MALLOC and not grown:
                twin.run()
                if twin.allocator.is_exhausted(*request):
                    self._lent.append(twin.last_request())
                    return
                if self._capacity_changes and twin.allocator.is_exhausted(*request, full=True):
                    twin.doubts[FLUSH_OR_MEMPOOL] += 1
                    return
            self._in_pool = True

    def end_run(self) -> None:
        """The run of requests in one pool is over: if each may have come after a flush, assume that it did."""
        if self._lent:
            self._twin.doubts[FLUSH_OR_MEMPOOL] += len(self._lent)
        if not self._in_pool:
            operations = self._twin.operations
            for index in self._lent:
                operations[index] = operations[index]._replace(kind=BORROW)
        self._lent, self._in_pool = [], False
