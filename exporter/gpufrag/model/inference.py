"""What a trace leaves open, told by the simulated allocator.

A segment goes by an empty_cache, or for the request that follows. A block that another stream used becomes free
when a request begins, or only when that request flushes the cache: too late to be found by it. A trace shows both
alike; but only one of the two makes the allocator do what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .allocator import Allocator
from .blocks import Block
from .events import Event
from .heap import DEFAULT_POOL
from .program import AWAIT, COMPLETE, EMPTY, FAIL, FREE, RELEASE, Operation, Program
from .replay import Replay
from .supply import Foreseen


@dataclass(frozen=True)
class Between:
    """What a trace tells between two calls of the program.

    `done` are the blocks that were completed, `late` those that were so after a segment had gone, which happens in
    a flush only; `gone` are the segments. `retried` is whether the trace says that the request flushed.
    """

    done: list[Operation] = field(default_factory=list)
    late: list[Operation] = field(default_factory=list)
    gone: list[Event] = field(default_factory=list)
    retried: bool = False


class Writer:
    """The operations behind a trace, in order. A twin of the recorded allocator follows them where it is asked."""

    def __init__(self, allocator: Allocator, made: Sequence[Block]) -> None:
        self.operations: list[Operation] = []
        self.inferred = 0
        self._twin = Replay(Program(self.operations, 0), allocator, made)

    def no_request(self, between: Between) -> None:
        """What went, went because the program said so."""
        self._complete(between.done + between.late)
        self._release(between.gone)
        if between.gone:
            pools = {event.pool for event in between.gone}
            self.empty(pools.pop() if len(pools) == 1 else DEFAULT_POOL)

    def empty(self, pool: tuple[int, int]) -> None:
        self.operations.append(Operation(EMPTY, 0, 0, 0, pool))

    def request(self, operation: Operation, between: Between) -> None:
        """A MALLOC or FAIL, and what came before it or was part of it."""
        if between.gone or between.retried or (between.done and operation.kind == FAIL):
            self._settle(operation, between)
        else:
            self._complete(between.done)
            self.operations.append(operation)

    def _settle(self, operation: Operation, between: Between) -> None:
        early, foreseen = self._split(operation, between)
        self._complete(between.done[:early])
        if foreseen is None:
            self.no_request(Between(late=between.late, gone=between.gone))
            self.operations.append(operation)
            return
        self.inferred += bool(between.gone) and not between.retried
        self._release(between.gone[len(foreseen.released) :])
        if foreseen.flushes:
            self._flush_twin(operation)
        self.operations.append(operation)
        self._complete(between.done[early:] + between.late)
        if foreseen.flushes:
            self._twin.position = len(self.operations)

    def _split(self, operation: Operation, between: Between) -> tuple[int, Foreseen | None]:
        """How many of the completed blocks were so before the request: as many as agree with what was recorded.

        Beside it what the request gave back; None where the allocator would not have done that on its own. The
        twin has completed all of them then.
        """
        early, explanation = len(between.done), None
        self._twin.run()
        for count in range(len(between.done) + 1):
            foreseen = self._twin.allocator.foresee(*operation[2:])
            if foreseen is not None and _agrees(foreseen, between, operation.kind == FAIL):
                early, explanation = count, foreseen
            if count < len(between.done):
                self._twin.complete(between.done[count].allocation)
        if explanation is None and between.retried:
            return 0, Foreseen([], True)
        return early, explanation

    def _flush_twin(self, operation: Operation) -> None:
        """The twin does the request as one that flushes, whatever it finds in its cache now."""
        self._twin.run()
        allocator = self._twin.allocator
        block = allocator.malloc_flushed(*operation[2:])
        if block is not None and operation.kind == FAIL:
            allocator.free(block)
            block = None
        self._twin.blocks.append(block)

    def _release(self, gone: Iterable[Event]) -> None:
        """A private pool gives its segments back when its graph or MemPool is gone."""
        pools = dict.fromkeys(event.pool for event in gone if event.pool != DEFAULT_POOL)
        self.operations += [Operation(RELEASE, 0, 0, 0, pool) for pool in pools]

    def _complete(self, done: Iterable[Operation]) -> None:
        for operation in done:
            last = self.operations[-1]
            if last.kind == AWAIT and last.allocation == operation.allocation:
                self.operations[-1] = operation._replace(kind=FREE)
            else:
                self.operations.append(operation._replace(kind=COMPLETE))


def _agrees(foreseen: Foreseen, between: Between, failed: bool) -> bool:
    """Whether what a request would give back is what was recorded."""
    gone = [event.size for event in between.gone]
    released = [block.size for block in foreseen.released]
    if gone[: len(released)] != released:
        return False
    if foreseen.flushes:
        return failed or bool(gone)
    return len(gone) == len(released) and not between.late and not between.retried
