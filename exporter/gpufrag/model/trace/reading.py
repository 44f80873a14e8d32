"""The program behind a trace.

A trace mixes the program's requests (alloc, free) with the allocator's reactions under the settings of that run
(segments, retries). `read_program` keeps the requests, which can be replayed under any settings. If a trace leaves open
what happened, a simulated allocator (the twin) tries the explanations. Usually only one reproduces the recording; the
other cases are counted as doubts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from ...errors import BadInput
from ..allocatable import Driver
from ..heap import DEFAULT_POOL, Segment
from ..settings import SEGMENT_GRID, SMALL_REQUEST, SMALL_SEGMENT, Settings
from ..simulator.addresses import AddressSpace
from ..simulator.allocator import Allocator
from ..simulator.blocks import Block
from ..simulator.supply import Foreseen
from .events import (
    ALLOC,
    EMPTY_CACHE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GROWS,
    OOM,
    RETRY,
    SHRINKS,
    Event,
    has_completions,
)
from .failures import Failures, is_of_graph
from .lending import Lending
from .pools import UNKNOWN_POOL
from .program import (
    AWAIT,
    BORROW,
    EMPTY,
    FAIL,
    FAIL_IN_CAPTURE,
    FLUSH_OR_EMPTY_CACHE,
    FLUSH_OR_STREAM,
    FREE,
    MALLOC,
    Operation,
    Program,
)  # fmt: skip
from .twin import Growth, Twin, begins_with


def read_program(
    events: Sequence[Event],
    settings: Settings = Settings(),
    limit: int | None = None,
    *,
    allocator: Allocator | None = None,
    made: Sequence[Block] = (),
) -> Program:
    """Return the program behind a trace that was recorded under `settings` and `limit` (bytes; None is none).

    Alternatively `allocator` is in the state of the recorded one after the first `made` allocations; the call modifies
    it. Raises BadInput, naming the event, if a block is allocated twice.
    """
    if allocator is None:
        allocator = Allocator(settings, Driver(limit=limit), AddressSpace(places(events, settings)))
    reader = _Reader(events, allocator, made)
    for index, event in enumerate(events):
        reader.read(index, event)
    return reader.program()


def places(
    events: Sequence[Event], settings: Settings = Settings(), device: int | None = None, older: Iterable[Segment] = ()
) -> list[tuple[int, int]]:
    """Return address and size of the new segments in order; they break ties between equal blocks.

    An expandable one begins with its first page, and has address space for more; omitted if the size of the `device` in
    bytes is unknown. older: the segments from before the trace.
    """
    found: list[tuple[int, int]] = []
    mapped: dict[int, list[int]] = {}  # of each expandable segment, by address: its end, and the mapped bytes

    def add_pages(address: int, size: int, small: bool) -> None:
        start = next((start for start, (end, _) in mapped.items() if start <= address < end), None)
        if start is not None:
            mapped[start][1] += size
        elif (space := settings.address_space(small, device)) is not None:
            mapped[address] = [address + space, size]
            found.append((address, space))

    for segment in older:
        if segment.expandable:
            add_pages(segment.address, segment.size, segment.small)
    found.clear()
    for event in events:
        address = event.address or 0
        if event.action == "segment_alloc":
            found.append((address, event.size))
        elif event.action == "segment_map":
            add_pages(address, event.size, event.size == SMALL_SEGMENT)
        elif event.action == "segment_unmap":
            start = next((start for start, (end, _) in mapped.items() if start <= address < end), None)
            if start is not None:
                mapped[start][1] -= event.size
                if mapped[start][1] <= 0:
                    del mapped[start]
    return found


def _driver_bytes(size: int) -> int:
    """Return the free memory that the driver needs for a segment."""
    return -(-size // SEGMENT_GRID) * SEGMENT_GRID + SEGMENT_GRID


def _capacity_changes(events: Sequence[Event], reserved: int, capacity: int | None) -> bool:
    """Return whether the trace shows that another process took or returned driver memory."""
    if capacity is None:
        return False
    for event in events:
        if event.action in GROWS:
            if reserved + _driver_bytes(event.size) > capacity:
                return True
            reserved += event.size
        elif event.action in SHRINKS:
            reserved -= event.size
        elif event.action == OOM and event.address is not None and event.address + reserved != capacity:
            return True
    return False


class _Reader:
    """Reads a trace; holds back what happens between two calls of the program until the second is known."""

    def __init__(self, events: Sequence[Event], allocator: Allocator, made: Sequence[Block]) -> None:
        self._events = events
        self._has_completions = has_completions(events)
        self._allocations = self._strangers = 0
        self._live: dict[int, Operation] = {}
        self._waiting: dict[int, Operation] = {}
        self._trail: list[Operation | Event] = []
        """What happened since the last call: completed blocks (as operations) and released segments (as events)."""
        self._retried = False
        self._emptying = False
        self._reserved = allocator.reserved
        self._capacity_changes = _capacity_changes(events, self._reserved, allocator.capacity)
        self._grown = self._least = 0
        """The least driver memory for this process that explains the segments created since the last call."""
        self._explaining = 0
        """The same for the current request."""
        self._early = 0
        """The number of completed blocks of the trail before its first new segment or pages."""
        self._partial = False
        """Whether pages were released after others were mapped, so the next request grew a segment in vain."""
        self._at = 0
        self._allocator = allocator
        self._twin = Twin(allocator, made)
        self._operations = self._twin.operations
        self._failures = Failures(events, self._twin)
        self._lending = Lending(self._twin, self._capacity_changes)

    def program(self) -> Program:
        self._no_request()
        self._failures.settle()
        self._lending.end_run()
        return Program(tuple(self._operations), self._allocations, self._strangers, dict(self._twin.doubts))

    def read(self, index: int, event: Event) -> None:
        self._at = index
        action = event.action
        if action == ALLOC:
            self._alloc(index, event)
        elif action == FREE_REQUESTED:
            self._free(index, event)
        elif action == FREE_COMPLETED:
            self._complete(index, event)
        elif action in GROWS:
            if not self._grown:
                self._early = sum(isinstance(item, Operation) for item in self._trail)
            self._least = max(self._least, self._reserved + _driver_bytes(event.size))
            self._reserved += event.size
            self._grown += event.size
        elif action in SHRINKS:
            self._reserved -= event.size
            self._partial |= self._grown > 0 and action == "segment_unmap"
            if not self._emptying:
                self._trail.append(event)
        elif action == OOM:
            failed = Operation(FAIL, self._allocations, event.size, event.stream, event.pool)
            self._request(failed, None if event.address is None else event.address + self._reserved)
        elif action == EMPTY_CACHE:
            self._no_request()
            self._operations.append(Operation(EMPTY, 0, 0, 0, DEFAULT_POOL))
            self._emptying = True
        elif action == RETRY:
            self._no_request()
            self._retried = True

    def _alloc(self, index: int, event: Event) -> None:
        address = event.address
        assert address is not None
        if address in self._live:
            raise BadInput(f"event {index} allocates {address:#x}, which is still allocated: the trace has gaps")
        if address in self._waiting:  # completions were left out of the trace
            self._complete(index, event)
        operation = Operation(MALLOC, self._allocations, event.size, event.stream, event.pool)
        self._live[address] = operation
        self._request(operation, address=address)

    def _free(self, index: int, event: Event) -> None:
        if self._trail:
            self._no_request()
        self._emptying = False
        assert event.address is not None
        operation = self._live.pop(event.address, None)
        if operation is None:
            self._strangers += 1
        elif self._is_done_at_once(index, event.address):
            self._operations.append(Operation(FREE, *operation[1:]))
        else:
            self._waiting[event.address] = operation
            self._operations.append(Operation(AWAIT, *operation[1:]))

    def _is_done_at_once(self, index: int, address: int) -> bool:
        """Return whether no flush is possible in between, so that nothing has to be held back."""
        following = self._events[index + 1 : index + 3]
        if not self._has_completions:
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
            self._trail.append(operation)

    def _no_request(self) -> None:
        """The next call is not a request, so an empty_cache call released the segments."""
        trail, self._trail, self._retried = self._trail, [], False
        if trail:
            self._twin.append_completed(item for item in trail if isinstance(item, Operation))
            self._twin.append_emptied([item for item in trail if isinstance(item, Event)])

    def _request(self, operation: Operation, capacity: int | None = None, address: int | None = None) -> None:
        """Append a MALLOC or FAIL after the trail.

        capacity: driver memory for the process, if known; address: of the block that served it.
        """
        self._allocations += 1
        self._emptying = False
        self._explaining, self._least = self._least, 0
        if self._twin.capacity is not None and self._explaining > self._twin.capacity:
            self._twin.set_capacity(self._explaining)
        if operation.kind == FAIL or self._retried or any(isinstance(item, Event) for item in self._trail):
            self._settle(operation, capacity, address)
        elif self._trail and self._may_have_waited(operation):
            self._settle_wait(operation, address)
        else:
            self._twin.append_completed(self._trail)  # type: ignore[arg-type]
            self._operations.append(operation)
        self._lending.note(operation, grown=self._grown > 0)
        self._trail, self._retried, self._grown, self._partial = [], False, 0, False

    def _settle(self, operation: Operation, capacity: int | None = None, address: int | None = None) -> None:
        """Find the explanation of the trail with which the twin reproduces the recording, and append it."""
        self._twin.run()
        unknown = operation.pool == UNKNOWN_POOL
        if unknown:
            operation = operation._replace(pool=DEFAULT_POOL)
        failed = operation.kind == FAIL
        if capacity is not None and capacity != self._twin.capacity:
            self._twin.set_capacity(capacity)
            self._twin.run()
        foreseen = self._allocator.foresee(*operation[2:])
        gone = [item for item in self._trail if isinstance(item, Event)]
        if foreseen is None or not foreseen.released or not begins_with(gone, foreseen.released):
            self._append_emptied_pools(operation.pool)
            gone = [item for item in self._trail if isinstance(item, Event)]
        completed = [item for item in self._trail if isinstance(item, Operation)]
        first = self._trail.index(gone[0]) if gone else len(self._trail)
        done, late = completed[:first], completed[first:]
        if self._partial and gone:
            self._twin.append_completed(completed[: self._early])
            self._operations.append(operation)
            self._twin.run()
            self._twin.append_completed(completed[self._early :])
            return
        early, foreseen, if_full = self._twin.explain(
            operation, done, gone, late, self._retried, self._growth() if gone and not failed else None
        )
        settings = self._allocator.settings
        flushed: bool | None = None  # if this is sure
        if not (failed or self._grown or self._retried):
            if not settings.expandable_segments:
                flushed = False
            elif if_full is not None if foreseen is None else foreseen.flushes:
                flushed = self._flush_served(operation, gone, address)
        is_flush = foreseen is not None and foreseen.flushes and not self._retried
        if is_flush and (flushed is False or self._is_end_of_pool(gone, operation.pool)):
            foreseen = None
        if unknown and not gone:
            operation = self._failures.place(operation, foreseen, self._at, waited=bool(completed))
        elif failed and gone and foreseen is None and not late and (unknown or operation.pool == gone[0].pool):
            operation = self._failures.place_by_release(operation, gone)
        if operation.kind == FAIL_IN_CAPTURE:
            self._twin.append_completed([*done, *late])
            self._operations.append(operation)
            self._twin.run()
            return
        if failed and not gone and not late and (foreseen is None or is_of_graph(operation.pool)):
            self._twin.append_completed(done)
            self._failures.append_in_capture(operation)
            return
        if not failed and gone and foreseen is None and flushed is not False and self._may_have_flushed(completed):
            served = self._allocator.foresee(*operation[2:]) is None  # then empty_cache explains no new segment
            full = self._capacity_changes or served or not self._twin.is_flush(operation, Foreseen([], True), gone)
            if full and if_full is not None:
                early, foreseen = if_full
                self._twin.set_capacity(self._capacity_if_full(gone, foreseen))
                self._twin.run()
            else:
                self._twin.doubts[FLUSH_OR_EMPTY_CACHE] += 1
        if foreseen is None and self._is_lent(operation, gone):
            self._twin.append_completed([*done, *late])
            self._operations.append(operation._replace(kind=BORROW))
            self._twin.run()
            return
        if foreseen is None:
            self._twin.append_completed([*done, *late])
            self._twin.append_emptied(gone)
            if failed and gone:  # which had nothing to release any more
                self._trail = []
                self._settle(operation._replace(pool=UNKNOWN_POOL) if unknown else operation)
            else:
                self._operations.append(operation)
            return
        self._twin.append_completed(done[:early])
        self._twin.append_released(gone[len(foreseen.released) :])
        if foreseen.flushes:
            self._append_flush(operation, foreseen, gone, sure=flushed is True)
        else:
            self._operations.append(operation)
            self._twin.run()
        self._twin.append_completed([*done[early:], *late])
        if foreseen.flushes:
            self._twin.skip()

    def _is_lent(self, operation: Operation, gone: Sequence[Event]) -> bool:
        """Return whether a MemPool with use_on_oom served a request of the default pool that collected garbage."""
        if not gone or self._grown or operation.kind == FAIL or self._allocator.settings.torch < (2, 11):
            return False
        if operation.pool == DEFAULT_POOL or self._twin.is_flush(operation, Foreseen([], True), gone):
            return False
        return [block.size for block in self._allocator.supply.too_old()] == [event.size for event in gone]

    def _flush_served(self, operation: Operation, gone: Sequence[Event], address: int | None) -> bool | None:
        """Return whether a request that no new pages served got its block by a flush; None if it can't be told.

        All blocks of the trail must be completed. Releases what a flush or empty_cache releases.
        """
        for pool in {event.pool for event in gone} - {DEFAULT_POOL}:
            self._allocator.release_pool(pool)
        if gone:
            self._allocator.empty_cache()
        cached, room = self._allocator.places_in_expandable(*operation[2:])
        return None if (cached == address) == (room == address) else room == address

    def _may_have_waited(self, operation: Operation) -> bool:
        """Return whether a successful request may have flushed the cache and released nothing.

        It then was served by blocks for which the flush waited, in an expandable segment.
        """
        settings = self._allocator.settings
        if not settings.expandable_segments or self._waiting:
            return False
        small = settings.round(operation.size) <= SMALL_REQUEST
        page, wanted = settings.page_size(small), settings.segment_size(settings.round(operation.size))
        before, limit, capacity = self._reserved - self._grown, self._allocator.driver.limit, self._twin.capacity
        is_limited = limit is not None and before + wanted > limit
        is_full = capacity is not None and -(-wanted // page) * page > Driver.usable(capacity - before)
        return is_limited or is_full or self._capacity_changes

    def _settle_wait(self, operation: Operation, address: int | None) -> None:
        """Decide whether a request flushed the cache although it released nothing, and append it."""
        self._twin.run()
        done = [item for item in self._trail if isinstance(item, Operation)]
        growth = self._growth() if self._capacity_changes else None
        early, foreseen, if_full = self._twin.explain(operation, done, (), (), growth=growth)
        flush = (early, foreseen) if foreseen is not None and foreseen.flushes else if_full
        served = None if self._grown else self._flush_served(operation, (), address)
        if flush is not None and served is None:
            self._twin.doubts[FLUSH_OR_STREAM] += 1
        if flush is None or not served:
            self._twin.append_completed(done)
            self._operations.append(operation)
            return
        self._twin.append_completed(done[: flush[0]])
        if flush is if_full:
            self._twin.set_capacity(self._reserved)
        self._append_flush(operation, flush[1], (), sure=True)
        self._twin.append_completed(done[flush[0] :])
        self._twin.skip()

    def _growth(self) -> Growth:
        return Growth(self._grown, max(self._explaining, self._reserved))

    def _capacity_if_full(self, gone: Sequence[Event], foreseen: Foreseen) -> int:
        """Return driver memory for the process with which a request fails at first, and not after its flush.

        It is the largest that does so. In an expandable segment, where a request can need more pages after the flush
        than before it, it is the smallest.
        """
        if self._allocator.settings.expandable_segments:
            return self._growth().capacity
        freed = sum(event.size for event in gone) - sum(block.size for block in foreseen.released)
        return max(self._explaining, self._reserved + freed)

    def _may_have_flushed(self, completed: Sequence[Operation]) -> bool:
        """Return whether a successful request may have flushed the cache because another process took memory.

        Without new pages, a flush serves a request in an expandable segment with blocks that it waited for, or with the
        rest of a block that was too large to be split.
        """
        settings = self._allocator.settings
        extended = settings.expandable_segments and (bool(completed) or settings.max_split_size is not None)
        return (self._grown > 0 or extended) and self._twin.capacity is not None

    def _append_flush(self, operation: Operation, foreseen: Foreseen, gone: Sequence[Event], sure: bool) -> None:
        """Append a request that flushed the cache, and note how sure that is."""
        in_default = operation.pool == DEFAULT_POOL
        if gone and not in_default:
            self._failures.flushing.add(operation.pool)
        if not self._retried and operation.kind == MALLOC:
            if not sure:
                self._twin.doubts[FLUSH_OR_EMPTY_CACHE] += 1
        elif not self._retried and not self._trail and (not in_default or self._failures.is_in_capture(self._at)):
            self._failures.note_unclear(len(self._operations))
        self._twin.flush(operation, foreseen.released)

    def _is_end_of_pool(self, gone: Sequence[Event], requested: tuple[int, int]) -> bool:
        """Return whether a MemPool's end released the segments: torch then releases those of its pool alone."""
        pools = {event.pool for event in gone}
        return (
            len(pools - {requested}) == len(pools) == 1
            and all(pool[1] and not self._allocator.is_released(pool) for pool in pools)
            and self._allocator.settings.torch >= (2, 8)
        )

    def _append_emptied_pools(self, requested: tuple[int, int]) -> None:
        """Handle private segments released first: a MemPool or graph ended.

        A flush starts with the default pool, and a request may release segments of its own pool.
        """
        events = [item for item in self._trail if isinstance(item, Event)]
        ended = list(takewhile(lambda event: event.pool not in (DEFAULT_POOL, requested), events))
        if not ended or len(ended) == len(events):
            return
        end = self._trail.index(ended[-1]) + 1
        self._twin.append_completed(item for item in self._trail[:end] if isinstance(item, Operation))
        for pool in dict.fromkeys(event.pool for event in ended):
            self._twin.append_emptied([event for event in ended if event.pool == pool])
        self._trail = self._trail[end:]
        self._twin.run()
