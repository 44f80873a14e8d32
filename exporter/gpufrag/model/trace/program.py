"""A recorded program: a trace's operations, and their replay on the simulated allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..simulator.allocator import Allocator
from ..simulator.blocks import Block
from ..simulator.fast_path import FastPath, Request

MALLOC, FREE, AWAIT, COMPLETE, FAIL, EMPTY, RELEASE, CAPACITY, FAIL_IN_CAPTURE, BORROW = range(10)

FLUSH_OR_EMPTY_CACHE = "flush or empty_cache"
FLUSH_OR_STREAM = "flush or wait for a stream"
FLUSH_OR_COLLECTION = "flush or garbage collection"
FLUSH_OR_CAPTURE = "flush or CUDA graph capture"
FLUSH_OR_PRIVATE_POOL = "flush or request in a private pool"
FLUSH_OR_MEMPOOL = "flush or request in a MemPool"


class Operation(NamedTuple):
    """One operation of the program, or an event that affects it.

    kind: MALLOC; FREE (at once); AWAIT (a free that waits for other streams) and its COMPLETE; FAIL (a request that
    failed in the recording), FAIL_IN_CAPTURE (the same without a flush); EMPTY (empty_cache of everything, or of one
    released private pool); RELEASE (a private pool's owner is gone); CAPACITY (from now on the driver has `size` bytes
    for this process, used and free); BORROW (a request of the default pool that the MemPool `pool`, with use_on_oom,
    served once everything else had failed). `allocation` numbers the program's allocations from 0; size is in bytes.
    """

    kind: int
    allocation: int
    size: int
    stream: int
    pool: tuple[int, int]


@dataclass(frozen=True)
class Program:
    """The operations behind a trace.

    strangers: frees of blocks older than the trace. doubts: by kind, requests for which the trace does not show whether
    they flushed the cache; the number of retries is uncertain by that many. A tuple of operations is compiled for the
    replay, so that it runs twice as fast; a list may still change.
    """

    operations: Sequence[Operation]
    allocations: int
    strangers: int = 0
    doubts: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def compiled(self) -> tuple[list[int], list[Request | None]]:
        """The operations as codes, and the distinct requests: see FastPath."""
        numbers: dict[Request | None, int] = {None: 0}
        codes = [
            numbers.setdefault((size, stream, pool), len(numbers))
            if kind == MALLOC
            else ~allocation
            if kind == FREE
            else 0
            for kind, allocation, size, stream, pool in self.operations
        ]
        return codes, list(numbers)

    @property
    def inferred(self) -> int:
        return sum(self.doubts.values())

    @property
    def failed(self) -> int:
        """The number of requests that failed in the recording."""
        return sum(operation.kind in (FAIL, FAIL_IN_CAPTURE) for operation in self.operations)


class Replay:
    """Runs a program on an allocator; `position` is the number of operations done.

    If an allocation fails here but succeeded in the recording, it is skipped together with its free. A request that
    failed in the recording and succeeds here is freed at once, because the program continued without it. `made` are the
    allocator's blocks for the program's first allocations, which are not repeated.
    """

    def __init__(self, program: Program, allocator: Allocator, made: Sequence[Block] = ()) -> None:
        self.program = program
        self.allocator = allocator
        self.position = len(made)
        self.blocks: list[Block | None] = list(made)
        """By allocation number; None for one that failed or is freed."""
        self._awaiting: dict[Block, int] = {}  # the allocation's number: a block may be reused after a flush
        self._refused_again = 0
        self._codes: Sequence[int] = ()
        self._fast_path: FastPath | None = None
        if isinstance(program.operations, tuple):
            self._codes, requests = program.compiled
            self._fast_path = FastPath(allocator, requests)

    @property
    def failed(self) -> int:
        """Allocations that succeeded in the recording and failed here."""
        return self.allocator.counters.ooms - self._refused_again

    @property
    def done(self) -> bool:
        return self.position == len(self.program.operations)

    def run(self, until: int | None = None) -> None:
        """Run up to operation `until`, or to the end."""
        count = len(self.program.operations)
        end = count if until is None else min(until, count)
        if self._fast_path is None:
            self._run_each(end)
            return
        while self.position < end:
            self.position = self._fast_path.run(self._codes, self.blocks, self.position, end)
            if self.position < end:
                self._rare(self.program.operations[self.position])
                self.position += 1

    def _run_each(self, end: int) -> None:
        operations = self.program.operations
        blocks, malloc, free = self.blocks, self.allocator.malloc, self.allocator.free
        for position in range(self.position, end):
            kind, allocation, size, stream, pool = operations[position]
            if kind == MALLOC:
                blocks.append(malloc(size, stream, pool))
            elif kind == FREE:
                block = blocks[allocation]
                if block is not None:
                    free(block)
                    blocks[allocation] = None
            else:
                self._rare(operations[position])
        self.position = max(self.position, end)

    def complete(self, allocation: int) -> None:
        """Complete a freed block: its streams finished."""
        block = self.blocks[allocation]
        if block is not None and self._awaiting.get(block) == allocation:
            del self._awaiting[block]
            self.allocator.complete(block)
        self.blocks[allocation] = None

    def _rare(self, operation: Operation) -> None:
        kind, allocation, size, stream, pool = operation
        if kind == FAIL:
            self._fail(size, stream, pool)
        elif kind == FAIL_IN_CAPTURE:
            capturing, self.allocator.capturing = self.allocator.capturing, True
            self._fail(size, stream, pool)
            self.allocator.capturing = capturing
        elif kind == BORROW:
            self.blocks.append(self.allocator.malloc(size, stream, lender=pool))
        elif kind == CAPACITY:
            self.allocator.capacity = size
        elif kind == AWAIT:
            self._await(allocation)
        elif kind == COMPLETE:
            self.complete(allocation)
        elif kind == EMPTY:
            self.allocator.empty_cache(pool)
        else:
            self.allocator.release_pool(pool)

    def _fail(self, size: int, stream: int, pool: tuple[int, int]) -> None:
        served = self.allocator.malloc(size, stream, pool)
        if served is None:
            self._refused_again += 1
        else:
            self.allocator.free(served)
        self.blocks.append(None)

    def _await(self, allocation: int) -> None:
        block = self.blocks[allocation]
        if block is not None:
            block.shared = True
            self.allocator.free(block)
            self._awaiting[block] = allocation
