"""The program behind a trace.

A trace mixes what the program asked for (alloc, free) with what the allocator made of it under the settings of
that run (segments, retries). `read_program` keeps the first: the operations that can be replayed under any
settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadInput
from .addresses import AddressSpace
from .allocatable import Driver
from .allocator import Allocator
from .blocks import Block
from .events import ALLOC, EMPTY_CACHE, FREE_COMPLETED, FREE_REQUESTED, OOM, RETRY, SHRINKS, Event
from .heap import DEFAULT_POOL
from .inference import Between, Writer
from .program import AWAIT, FAIL, FREE, MALLOC, Operation, Program
from .settings import MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, Settings


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
