"""The events of an allocator trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any, NamedTuple

from ...errors import BadInput
from ..heap import DEFAULT_POOL

ALLOC = "alloc"
FREE_REQUESTED = "free_requested"
FREE_COMPLETED = "free_completed"
OOM = "oom"
GROWS = frozenset(("segment_alloc", "segment_map"))
SHRINKS = frozenset(("segment_free", "segment_unmap"))
PASSED_OVER = frozenset(("snapshot", "annotate", "user_defined"))
EMPTY_CACHE = "empty_cache"  # not torch's: marks the start of an empty_cache call
RETRY = "retry"  # not torch's: the request that follows flushes the cache
WITHOUT_ADDRESS = frozenset((EMPTY_CACHE, RETRY))
TORCH_ACTIONS = frozenset((ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM)) | GROWS | SHRINKS
ACTIONS = TORCH_ACTIONS | WITHOUT_ADDRESS


class Event(NamedTuple):
    """One entry of a trace.

    size: bytes; requested for alloc and free, rounded for oom, whole segments otherwise. The address of an oom is the
    driver's free memory in bytes, None if unknown. EMPTY_CACHE and RETRY are not in torch's traces. They have no
    address and mark the beginning of a call.
    """

    action: str
    address: int | None
    size: int
    stream: int
    pool: tuple[int, int] = DEFAULT_POOL


def parse_rows(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> list[Event]:
    """Events from rows whose `columns` are action, addr, size, stream and perhaps pool_id, in any order.

    Raises BadInput, naming the row.
    """
    needed = ("action", "addr", "size", "stream")
    if not all(isinstance(name, str) for name in columns):
        raise BadInput("the names of the events' columns are not all text")
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


def parse_trace(entries: Iterable[Mapping[str, Any]], first: int = 0) -> list[Event]:
    """Return the events of one device from torch's `device_traces`; skips entries that are not memory events.

    If stacks were recorded, they reveal which segments an empty_cache released. Raises BadInput, naming the entry by
    its number, counted from `first`.
    """
    events: list[Event] = []
    new = tuple.__new__  # a third of the time of Event's own constructor
    for index, entry in enumerate(entries, first):
        try:
            action = entry["action"]
            if action in PASSED_OVER:
                continue
            address = entry.get("device_free") if action == OOM else entry["addr"]
            size, stream, pool = entry["size"], entry["stream"], entry.get("pool_id") or DEFAULT_POOL
            if action in SHRINKS and _is_asked(entry) and not (events and events[-1].action in SHRINKS):
                events.append(Event(EMPTY_CACHE, None, 0, 0))
            numbers = type(address) is type(size) is type(stream) is int and address >= 0 <= size and stream >= 0
            if numbers and pool == DEFAULT_POOL and action in TORCH_ACTIONS:
                events.append(new(Event, (action, address, size, stream, DEFAULT_POOL)))
            else:
                events.append(_checked(index, action, address, size, stream, pool))
        except KeyError as error:
            raise BadInput(f"event {index} has no key {error}: the trace is broken, record a new one") from None
        except (AttributeError, TypeError):
            raise BadInput(f"event {index} is not a trace entry of torch") from None
    return events


def has_completions(events: Sequence[Event]) -> bool:
    """Return whether the trace has free_completed events; without them, addresses are reused with no completion."""
    freed: set[int | None] = set()
    for event in events:
        if event.action == FREE_COMPLETED:
            return True
        if event.action == FREE_REQUESTED:
            freed.add(event.address)
        elif event.action == ALLOC and event.address in freed:
            return False
    return True


def _is_asked(entry: Mapping[str, Any]) -> bool:
    """Return whether the program released the segment; only a trace with stacks shows it."""
    return any(frame["name"] == "empty_cache" for frame in entry.get("frames") or ())


def _checked(index: int, action: Any, address: Any, size: Any, stream: Any, pool: Any = DEFAULT_POOL) -> Event:
    """Return an event from unchecked values. Omits an address that must not be there."""
    if action not in ACTIONS:
        raise BadInput(f"event {index} has the unknown action {shown(action)}: not written by torch up to 2.15")
    if action in WITHOUT_ADDRESS:
        address = None
    if pool is not DEFAULT_POOL:
        pool = tuple(pool)
    right = (
        _whole(size)
        and _whole(stream)
        and (_whole(address) if action not in WITHOUT_ADDRESS and (action != OOM or address is not None) else True)
    )
    if not right or len(pool) != 2 or not (_whole(pool[0]) and _whole(pool[1])):
        raise BadInput(f"event {index} ({action}) has an address, size, stream or pool that is not a whole number >= 0")
    return Event(action, address, size, stream, pool)


def _whole(number: Any) -> bool:
    return type(number) is int and number >= 0
