"""A trace in columns: a fifth of the memory of event objects, and passes over it without a function call per event."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from operator import mul
from typing import Any, NamedTuple, overload

from ...errors import BadInput
from ..heap import DEFAULT_POOL
from .events import ACTIONS, ALLOC, EMPTY_CACHE, FREE_COMPLETED, FREE_REQUESTED, GROWS, SHRINKS, Event, parse_trace

_OWN = {action: action for action in ACTIONS}
"""To this package's own objects: comparing those takes half the time."""
_OF_BLOCKS = frozenset((ALLOC, FREE_REQUESTED, FREE_COMPLETED))
_ORDINARY = _OF_BLOCKS | GROWS
_ACTIVE = dict.fromkeys(ACTIONS, 0) | {ALLOC: 1, FREE_COMPLETED: -1}
_RESERVED = dict.fromkeys(GROWS, 1) | dict.fromkeys(SHRINKS, -1)
_LISTS = frozenset((list, tuple))
_NUMBERS = ("addr", "size", "stream")
NEEDED = {"action", *_NUMBERS}
"""The keys of every entry of a trace but a failed request."""
_OPTIONAL = {"frames", "time_us", "pool_id"}


class Rows(NamedTuple):
    """Consecutive entries of torch's trace with the same keys: the values by key."""

    columns: Mapping[str, Sequence[Any]]
    texts: Mapping[str, str] = {}
    """Values that all these entries have."""

    @property
    def are_ordinary(self) -> bool:
        """Whether no action, pool, stack or time needs a closer look."""
        if not _OPTIONAL.isdisjoint(self.texts):
            return False
        pools = self.columns.get("pool_id", ())
        try:
            return _ORDINARY.issuperset(self.columns.get("action", ())) and all(pool == DEFAULT_POOL for pool in pools)
        except TypeError:  # an action that is a list or dict
            return False

    def entries(self) -> list[dict[str, Any]]:
        return [{**dict(zip(self.columns, values)), **self.texts} for values in zip(*self.columns.values())]


assert Event._fields == ("action", "address", "size", "stream", "pool"), "Trace needs a column for each field of Event"


class Trace(Sequence[Event]):
    """The events of one device, as events or by column."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.actions: list[str] = []
        """The constants of `events`, to compare with `is`."""
        self.addresses = array("Q")
        """0 if the event has none."""
        self.sizes = array("Q")
        self.streams = array("Q")
        self.frames: list[Any] = []
        """The stack of each event as torch records it, innermost frame first; empty if none was recorded."""
        self.times: array[int] | None = array("Q")
        """Of each event in microseconds; None if the trace has none."""
        self.others: list[int] = []
        """Which events are about segments, failures and flushes instead of blocks."""
        self._pools: dict[int, tuple[int, int]] = {}
        self._without_address: set[int] = set()
        if events:
            self._add_events(events)
            self.frames, self.times = [()] * len(self), None

    def __len__(self) -> int:
        return len(self.actions)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        address = None if index in self._without_address else self.addresses[index]
        pool = self._pools.get(index, DEFAULT_POOL)
        return Event(self.actions[index], address, self.sizes[index], self.streams[index], pool)

    def __iter__(self) -> Iterator[Event]:
        if self._without_address or self._pools:
            return map(self.__getitem__, range(len(self)))
        columns = self.actions, self.addresses, self.sizes, self.streams, repeat(DEFAULT_POOL)
        return map(Event._make, zip(*columns))

    def active(self) -> array[int]:
        """Return the active bytes (as requested) after each event, counted from 0 before the trace. Raises BadInput."""
        try:
            return array("q", accumulate(map(mul, self.sizes, map(_ACTIVE.__getitem__, self.actions))))
        except OverflowError:
            raise BadInput("its requests add up to more than 2^63 bytes") from None

    def reserved(self) -> list[tuple[int, int]]:
        """Return each event that changes the reserved bytes, and those after it, counted from 0 before the trace."""
        changes = [index for index in self.others if self.actions[index] in _RESERVED]
        return list(zip(changes, accumulate(_RESERVED[self.actions[index]] * self.sizes[index] for index in changes)))

    def add_rows(self, rows: Rows) -> None:
        """Append ordinary rows. Raises KeyError, TypeError or OverflowError if a column lacks or is not numbers."""
        columns = rows.columns
        addresses, sizes, streams = (array("Q", columns[name]) for name in _NUMBERS)
        no_stacks: list[Any] = [()] * len(sizes)
        if not _LISTS.issuperset(map(type, columns.get("frames", no_stacks))):
            raise TypeError("a stack that is no list")
        self._add_times(columns.get("time_us"))
        actions = columns["action"]
        if not _OF_BLOCKS.issuperset(actions):
            self.others += [at for at, action in enumerate(actions, len(self)) if action not in _OF_BLOCKS]
        self.actions += map(_OWN.__getitem__, actions)
        self.addresses += addresses
        self.sizes += sizes
        self.streams += streams
        self.frames += columns.get("frames", no_stacks)

    def add_entries(self, entries: Sequence[Mapping[str, Any]], first: int = 0) -> None:
        """Append entries of torch's trace; `first`: the number of entries before them. Raises BadInput."""
        events = parse_trace(entries, first)
        mine = [entries[at] for at in _positions(events, entries)]
        self._add_events(events)
        self._add_times([entry.get("time_us") for entry in mine])
        stacks = [entry.get("frames") or () for entry in mine]
        if not all(isinstance(stack, (list, tuple)) for stack in stacks):
            raise BadInput("a stack of the trace is not a list of frames")
        self.frames += stacks

    def _add_times(self, times: Sequence[Any] | None) -> None:
        if self.times is not None:
            try:
                self.times += array("Q", times or ())
            except (TypeError, OverflowError):
                self.times = None
        if times is None:
            self.times = None

    def _add_events(self, events: Iterable[Event]) -> None:
        for index, event in enumerate(events, len(self)):
            if event.address is None:
                self._without_address.add(index)
            if event.pool != DEFAULT_POOL:
                self._pools[index] = event.pool
            if event.action not in _OF_BLOCKS:
                self.others.append(index)
            self.actions.append(_OWN[event.action])
            self.addresses.append(event.address or 0)
            self.sizes.append(event.size)
            self.streams.append(event.stream)


def read_trace(items: Iterable[Rows | Mapping[str, Any]]) -> Trace:
    """Return the trace of one device from torch's entries, or Rows of them. Raises BadInput, naming the entry."""
    trace = Trace()
    begin = 0  # entries before those that wait
    waiting: list[Mapping[str, Any]] = []
    for item in items:
        if not isinstance(item, Rows):
            waiting.append(item)
            continue
        if not item.are_ordinary:
            waiting += item.entries()
            continue
        trace.add_entries(waiting, begin)
        begin, waiting = begin + len(waiting), []
        try:
            trace.add_rows(item)
            begin += len(item.columns["action"])
        except (KeyError, TypeError, OverflowError):  # the entries one by one: the error names the broken one
            waiting = [*item.entries()]
    trace.add_entries(waiting, begin)
    return trace


def _positions(events: Sequence[Event], entries: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the index of the entry of each event; a mark that the parser added has that of the next one."""
    at = 0
    for event in events:
        if event.action != EMPTY_CACHE:
            while entries[at]["action"] != event.action:
                at += 1
        yield at
        at += event.action != EMPTY_CACHE
