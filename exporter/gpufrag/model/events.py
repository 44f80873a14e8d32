"""What a trace of the allocator says, and the program that is behind it.

A trace mixes what the program asked for (alloc, free) with what the allocator made of it under the settings of
that run (segments, retries). `read_program` keeps the first: the operations that can be replayed under any
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from ..errors import BadInput
from .heap import DEFAULT_POOL
from .settings import Settings

ALLOC = "alloc"
FREE_REQUESTED = "free_requested"
FREE_COMPLETED = "free_completed"
OOM = "oom"
GROWS = frozenset(("segment_alloc", "segment_map"))
SHRINKS = frozenset(("segment_free", "segment_unmap"))
PASSED_OVER = frozenset(("snapshot", "annotate"))
ACTIONS = frozenset((ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM)) | GROWS | SHRINKS


class Event(NamedTuple):
    """One entry of a trace. size is bytes: as requested for alloc and free, rounded for oom, whole segments else.

    An oom has no address.
    """

    action: str
    address: int | None
    size: int
    stream: int
    pool: tuple[int, int] = DEFAULT_POOL


MALLOC, FREE, AWAIT, COMPLETE, FAIL, EMPTY = range(6)


class Operation(NamedTuple):
    """One thing that the program did.

    kind: MALLOC; FREE (at once); AWAIT (a free that waits for other streams) and its COMPLETE; FAIL (a request
    that the recorded allocator refused); EMPTY (empty_cache). `allocation` numbers the allocations of the
    program from 0; size is bytes.
    """

    kind: int
    allocation: int
    size: int
    stream: int
    pool: tuple[int, int]


@dataclass(frozen=True)
class Program:
    """The operations behind a trace. `strangers` counts frees of blocks that were older than the trace."""

    operations: tuple[Operation, ...]
    allocations: int
    strangers: int


def parse_rows(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> list[Event]:
    """Events from rows whose `columns` are action, addr, size, stream and perhaps pool_id, in any order.

    Raises BadInput, naming the row.
    """
    needed = ("action", "addr", "size", "stream")
    if missing := [name for name in needed if name not in columns]:
        raise BadInput(f"the events have no column {missing[0]!r}: a trace needs {', '.join(needed)}")
    order = [columns.index(name) for name in (*needed, "pool_id") if name in columns]
    events = []
    for index, row in enumerate(rows):
        try:
            events.append(_checked(index, *[row[at] for at in order]))
        except (IndexError, KeyError, TypeError):
            raise BadInput(f"event {index} is not a row of {', '.join(columns)}") from None
    return events


def parse_trace(entries: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Events of one device from torch's `device_traces`; entries that are no memory events are passed over.

    Raises BadInput, naming the entry.
    """
    events = []
    for index, entry in enumerate(entries):
        try:
            action = entry["action"]
            if action in PASSED_OVER:
                continue
            address = None if action == OOM else entry["addr"]
            pool = entry.get("pool_id") or DEFAULT_POOL
            events.append(_checked(index, action, address, entry["size"], entry["stream"], pool))
        except KeyError as error:
            raise BadInput(f"event {index} has no key {error}: the trace is broken, record a new one") from None
        except (AttributeError, TypeError):
            raise BadInput(f"event {index} is not a trace entry of torch") from None
    return events


def _checked(index: int, action: Any, address: Any, size: Any, stream: Any, pool: Any = DEFAULT_POOL) -> Event:
    """An event of values that may be anything; an address where there must be none is left out."""
    if action not in ACTIONS:
        raise BadInput(f"event {index} has the unknown action {action!r}")
    event = Event(action, None if action == OOM else address, size, stream, tuple(pool))
    numbers: list[Any] = [size, stream, *pool, 0 if action == OOM else address]
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or len(pool) != 2:
        raise BadInput(f"event {index} ({action}) has an address, size, stream or pool that is no whole number >= 0")
    return event


def read_program(events: Sequence[Event], settings: Settings = Settings(), limit: int | None = None) -> Program:
    """The program behind a trace that was recorded under `settings` and `limit` (bytes; None is none).

    A trace does not show empty_cache, only segments that go. Where they go for a request that the limit or the
    garbage collection stood against, the allocator did it on its own, and a replay will find out by itself; all
    other such runs are taken for an empty_cache. Raises BadInput, naming the event, where a block is allocated
    twice.
    """
    reader = _Reader(events, settings, limit)
    for index, event in enumerate(events):
        reader.read(index, event)
    return Program(tuple(reader.operations), reader.allocations, reader.strangers)


class _Reader:
    """Follows a trace: which addresses are live, and how much is reserved."""

    def __init__(self, events: Sequence[Event], settings: Settings, limit: int | None) -> None:
        self.operations: list[Operation] = []
        self.allocations = 0
        self.strangers = 0
        self._events = events
        self._settings = settings
        self._limit = limit
        self._reserved = 0
        self._live: dict[int, Operation] = {}
        self._waiting: dict[int, Operation] = {}
        self._shrinking = False

    def read(self, index: int, event: Event) -> None:
        action, address = event.action, event.address
        if address is None:
            self.operations.append(Operation(FAIL, self._new(), event.size, event.stream, event.pool))
        elif action == ALLOC:
            self._alloc(index, address, event)
        elif action == FREE_REQUESTED:
            self._free(index, address)
        elif action == FREE_COMPLETED:
            self._complete(address)
        elif action in GROWS:
            self._reserved += event.size
        else:
            self._shrink(index, event)
        self._shrinking = action in SHRINKS

    def _new(self) -> int:
        self.allocations += 1
        return self.allocations - 1

    def _alloc(self, index: int, address: int, event: Event) -> None:
        self._complete(address)  # where completions were left out of the trace
        if address in self._live:
            raise BadInput(f"event {index} allocates {address:#x}, which is still allocated: the trace has gaps")
        operation = Operation(MALLOC, self._new(), event.size, event.stream, event.pool)
        self._live[address] = operation
        self.operations.append(operation)

    def _free(self, index: int, address: int) -> None:
        operation = self._live.pop(address, None)
        if operation is None:
            self.strangers += 1
            return
        after = self._events[index + 1] if index + 1 < len(self._events) else None
        if after is not None and after.action == FREE_COMPLETED and after.address == address:
            self.operations.append(operation._replace(kind=FREE))
        else:
            self._waiting[address] = operation
            self.operations.append(operation._replace(kind=AWAIT))

    def _complete(self, address: int) -> None:
        operation = self._waiting.pop(address, None)
        if operation is not None:
            self.operations.append(operation._replace(kind=COMPLETE))

    def _shrink(self, index: int, event: Event) -> None:
        if not self._shrinking and not self._under_pressure(index):
            self.operations.append(Operation(EMPTY, 0, 0, 0, DEFAULT_POOL))
        self._reserved -= event.size

    def _under_pressure(self, index: int) -> bool:
        """Whether the segments that go from `index` on had to go for the request that follows."""
        grows = False
        for event in islice(self._events, index, None):
            if event.action == OOM or (event.action == ALLOC and grows):
                return self._stood_against(event.size)
            if event.action in GROWS:
                grows = True
            elif event.action not in SHRINKS and event.action != FREE_COMPLETED:
                return False
        return False

    def _stood_against(self, request: int) -> bool:
        if self._limit is None:
            return False
        settings = self._settings
        threshold = settings.garbage_collection_threshold
        collected = threshold > 0 and self._reserved > int(threshold * self._limit)
        return collected or self._reserved + settings.segment_size(settings.round(request)) > self._limit
