"""A recorded program, run again on the simulated allocator."""

from __future__ import annotations

from collections.abc import Sequence

from .allocator import Allocator
from .blocks import Block
from .events import AWAIT, COMPLETE, EMPTY, FAIL, FREE, MALLOC, Program


class Replay:
    """A program on its way through an allocator; `position` is the number of operations done.

    An allocation that fails here although it succeeded when it was recorded is passed over with its free. A request
    that failed when it was recorded and succeeds here is freed at once: the program went on without it.
    `made` are blocks of the allocator that stand for the first allocations of the program, which are not repeated.
    """

    def __init__(self, program: Program, allocator: Allocator, made: Sequence[Block] = ()) -> None:
        self.program = program
        self.allocator = allocator
        self.position = len(made)
        self._blocks: list[Block | None] = [*made, *[None] * (program.allocations - len(made))]
        self._refused_again = 0

    @property
    def failed(self) -> int:
        """Allocations that succeeded when they were recorded, and failed here."""
        return self.allocator.counters.ooms - self._refused_again

    @property
    def done(self) -> bool:
        return self.position == len(self.program.operations)

    def run(self, until: int | None = None) -> None:
        """Goes on to operation `until`, or to the end."""
        operations = self.program.operations
        end = len(operations) if until is None else min(until, len(operations))
        blocks, malloc, free = self._blocks, self.allocator.malloc, self.allocator.free
        for position in range(self.position, end):
            kind, allocation, size, stream, pool = operations[position]
            if kind == MALLOC:
                blocks[allocation] = malloc(size, stream, pool)
            elif kind == FREE:
                block = blocks[allocation]
                if block is not None:
                    free(block)
                    blocks[allocation] = None
            else:
                self._rare(kind, allocation, size, stream, pool)
        self.position = max(self.position, end)

    def _rare(self, kind: int, allocation: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        allocator, block = self.allocator, self._blocks[allocation]
        if kind == EMPTY:
            allocator.empty_cache()
        elif kind == FAIL:
            served = allocator.malloc(size, stream, pool)
            if served is None:
                self._refused_again += 1
            else:
                allocator.free(served)
        elif block is not None and kind == AWAIT:
            block.shared = True
            allocator.free(block)
        elif block is not None and kind == COMPLETE:
            allocator.complete(block)
            self._blocks[allocation] = None
