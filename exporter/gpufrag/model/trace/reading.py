"""The program behind a trace.

A trace mixes what the program asked for (alloc, free) with what the allocator made of it under the settings of
that run (segments, retries). `read_program` keeps the first: the operations that can be replayed under any
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...errors import BadInput
from ..allocatable import Driver
from ..heap import DEFAULT_POOL
from ..settings import MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, Settings
from ..simulator.addresses import AddressSpace
from ..simulator.allocator import Allocator
from ..simulator.blocks import Block
from ..simulator.supply import Foreseen
from .events import ALLOC, EMPTY_CACHE, FREE_COMPLETED, FREE_REQUESTED, OOM, RETRY, SHRINKS, Event
from .program import AWAIT, COMPLETE, EMPTY, FAIL, FREE, MALLOC, RELEASE, Operation, Program, Replay


def read_program(
    events: Sequence[Event],
    settings: Settings = Settings(),
    limit: int | None = None,
    *,
    allocator: Allocator | None = None,
    made: Sequence[Block] = (),
) -> Program:
    """The program behind a trace that was recorded under `settings` and `limit` (bytes; None is none).

    `allocator` tells more than these two: it is as the recorded one was after the first `made` allocations, and is
    used up. Raises BadInput, naming the event, where a block is allocated twice.
    """
    if allocator is None:
        allocator = Allocator(settings, Driver(limit=limit), AddressSpace(places(events)))
    reader = _Reader(events, Writer(allocator, made), allocator.settings)
    for index, event in enumerate(events):
        reader.read(index, event)
    return reader.program()


def places(events: Sequence[Event]) -> list[tuple[int, int]]:
    """Address and size of the plain segments that were made, in order: they decide ties between equal blocks."""
    return [(event.address or 0, event.size) for event in events if event.action == "segment_alloc"]


def _tells_completions(events: Sequence[Event]) -> bool:
    """Torch can be told to leave out an action. Then addresses are used again that are never said to be free."""
    freed: set[int | None] = set()
    for event in events:
        if event.action == FREE_COMPLETED:
            return True
        if event.action == FREE_REQUESTED:
            freed.add(event.address)
        elif event.action == ALLOC and event.address in freed:
            return False
    return True


class _Reader:
    """Follows a trace; what happens between two calls of the program is held back until the second is known."""

    def __init__(self, events: Sequence[Event], writer: Writer, settings: Settings) -> None:
        self._events = events
        self._writer = writer
        self._settings = settings
        self._tells_completions = _tells_completions(events)
        self._allocations = self._strangers = 0
        self._live: dict[int, Operation] = {}
        self._waiting: dict[int, Operation] = {}
        self._between = Between()
        self._held_back = False
        self._emptying = False

    def program(self) -> Program:
        self._no_request()
        writer = self._writer
        return Program(tuple(writer.operations), self._allocations, self._strangers, writer.inferred)

    def read(self, index: int, event: Event) -> None:
        action = event.action
        if action == ALLOC:
            self._alloc(index, event)
        elif action == FREE_REQUESTED:
            self._free(index, event)
        elif action == FREE_COMPLETED:
            self._complete(index, event)
        elif action in SHRINKS:
            self._shrink(event)
        elif action == OOM:
            self._fail(event)
        elif action == EMPTY_CACHE:
            self._no_request()
            self._writer.empty(DEFAULT_POOL)
            self._emptying = True
        elif action == RETRY:
            self._no_request()
            self._between, self._held_back = Between(retried=True), True

    def _alloc(self, index: int, event: Event) -> None:
        address = event.address
        assert address is not None
        if address in self._live:
            raise BadInput(f"event {index} allocates {address:#x}, which is still allocated: the trace has gaps")
        if address in self._waiting:  # completions were left out of the trace
            self._complete(index, event)
        operation = Operation(MALLOC, self._allocations, event.size, event.stream, event.pool)
        self._live[address] = operation
        self._request(operation)

    def _fail(self, event: Event) -> None:
        """Torch tells the size of the segment that it could not have; those of many requests are larger than these."""
        size = event.size
        if size == self._settings.segment_size(SMALL_REQUEST + MIN_BLOCK):
            size -= MIN_BLOCK
        elif size == SMALL_SEGMENT:
            size = SMALL_REQUEST
        self._request(Operation(FAIL, self._allocations, size, event.stream, event.pool))

    def _free(self, index: int, event: Event) -> None:
        if self._held_back:
            self._no_request()
        self._emptying = False
        assert event.address is not None
        operation = self._live.pop(event.address, None)
        if operation is None:
            self._strangers += 1
        elif self._is_done_at_once(index, event.address):
            self._writer.operations.append(Operation(FREE, *operation[1:]))
        else:
            self._waiting[event.address] = operation
            self._writer.operations.append(Operation(AWAIT, *operation[1:]))

    def _is_done_at_once(self, index: int, address: int) -> bool:
        """Whether no flush can have come in between, so that nothing needs to be held back."""
        following = self._events[index + 1 : index + 3]
        if not self._tells_completions:
            return True
        if len(following) < 2 or following[0].address != address or following[0].action != FREE_COMPLETED:
            return False
        return following[1].action in (ALLOC, FREE_REQUESTED)

    def _complete(self, index: int, event: Event) -> None:
        assert event.address is not None
        if event.address in self._live:  # its free_requested was left out
            self._free(index, event)
        operation = self._waiting.pop(event.address, None)
        if operation is not None:
            between = self._between
            (between.late if between.gone else between.done).append(operation)
            self._held_back = True

    def _shrink(self, event: Event) -> None:
        if not self._emptying:
            self._between.gone.append(event)
            self._held_back = True

    def _request(self, operation: Operation) -> None:
        self._allocations += 1
        if self._held_back:
            self._writer.request(operation, self._between)
            self._between, self._held_back = Between(), False
        else:
            self._writer.operations.append(operation)
        self._emptying = False

    def _no_request(self) -> None:
        self._writer.no_request(self._between)
        self._between, self._held_back = Between(), False


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
