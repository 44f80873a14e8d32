"""The program behind a trace.

A trace mixes the program's requests (alloc, free) with the allocator's reactions under the settings of that run
(segments, retries). `read_program` keeps the requests, which can be replayed under any settings. If a trace leaves open
what happened, a simulated allocator (the twin) tries the explanations. Usually only one reproduces the recording; the
other cases are counted as doubts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

from ...errors import BadInput
from ..allocatable import UNBOUNDED, Driver
from ..heap import ALLOCATED, DEFAULT_POOL, Heap, Segment
from ..settings import MIN_BLOCK, SEGMENT_GRID, SMALL_REQUEST, Settings
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
from .pools import UNKNOWN_POOL
from .program import (
    AWAIT,
    BORROW,
    CAPACITY,
    COMPLETE,
    EMPTY,
    FAIL,
    FAIL_IN_CAPTURE,
    FREE,
    MALLOC,
    RELEASE,
    Operation,
    Program,
    Replay,
)  # fmt: skip

FLUSH_OR_EMPTY_CACHE = "flush or empty_cache"
FLUSH_OR_COLLECTION = "flush or garbage collection"
FLUSH_OR_CAPTURE = "flush or CUDA graph capture"
FLUSH_OR_MEMPOOL = "flush or request in a MemPool"


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
        allocator = Allocator(settings, Driver(limit=limit), AddressSpace(places(events)))
    reader = _Reader(events, allocator, made)
    for index, event in enumerate(events):
        reader.read(index, event)
    return reader.program()


def places(events: Sequence[Event]) -> list[tuple[int, int]]:
    """Return address and size of the new plain segments in order; they break ties between equal blocks."""
    return [(event.address or 0, event.size) for event in events if event.action == "segment_alloc"]


def unsplit_pools(events: Sequence[Event], end: Heap) -> frozenset[tuple[int, int]]:
    """Return the MemPools created with no_split, as far as the trace and its last heap show it.

    In such a pool every block is at a segment's start. It is proven by a block of `end` with a rest that another pool
    would have split off, or by a new segment although the rest of another one was large enough.
    """
    settings = end.settings
    made: dict[int, int] = {}
    new: set[int] = set()
    live: dict[int, tuple[Event, int]] = {}  # in private pools: the allocation, and the rest of its segment
    private = [segment for segment in end.segments if segment.private]
    split = {segment.pool for segment in private if len(segment.sizes) > 1 and not segment.expandable}
    proven = {segment.pool for segment in private if _has_unsplit_block(segment, settings)}
    for event in events:
        address, pool = event.address, event.pool
        if event.action == FREE_REQUESTED and address is not None:
            live.pop(address, None)
        if pool == DEFAULT_POOL or address is None:
            continue
        if event.action in GROWS:
            made[address] = event.size
            new.add(address)
        elif event.action in (ALLOC, OOM):
            size = event.size if event.action == OOM else settings.round(event.size)
            taken = UNBOUNDED if event.action == OOM or address in new else made.get(address, 0)
            alike = [(other, left) for other, left in live.values() if left and _is_alike(event, other, settings)]
            if any(size <= left < taken for _, left in alike):
                proven.add(pool)
            ends = {(other.address or 0) + made.get(other.address or 0, 0) for other, _ in alike}
            if settings.expandable_segments and address in new and address in ends:
                proven.add(pool)  # the pages extend a segment, but not its free end
            if event.action == ALLOC:
                if address not in made:
                    split.add(pool)
                new.discard(address)
                whole = settings.max_split_size is not None and size >= settings.max_split_size
                left = 0 if whole else made.get(address, 0) - size
                live[address] = event, left if size <= SMALL_REQUEST or left > SMALL_REQUEST else 0
    return frozenset(proven - split)


def _is_alike(one: Event, other: Event, settings: Settings) -> bool:
    """Return whether both requests are served from the same blocks of a private pool."""
    small = [settings.round(event.size) <= SMALL_REQUEST for event in (one, other)]
    return (one.stream, one.pool, small[0]) == (other.stream, other.pool, small[1])


def _has_unsplit_block(segment: Segment, settings: Settings) -> bool:
    """Return whether a live block is larger than its request by so much that torch splits it in other pools."""
    tail = MIN_BLOCK - 1 if segment.small or segment.expandable else SMALL_REQUEST
    largest = None if segment.small or segment.expandable else settings.max_split_size
    return any(
        state is ALLOCATED and size - wanted > tail and (largest is None or wanted < largest)
        for size, wanted, state in zip(segment.sizes, map(settings.round, segment.requested), segment.states)
    )


def _last(operations: Sequence[Operation], kind: int) -> int:
    return next(index for index in range(len(operations) - 1, -1, -1) if operations[index].kind == kind)


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


def _begins_with(gone: Sequence[Event], released: Sequence[Block]) -> bool:
    """Return whether the released segments are the first that went. The default pool may also mean that torch did not
    record which pool it was."""
    return len(gone) >= len(released) and all(
        event.size == block.size and event.pool in (DEFAULT_POOL, block.arena.pool.id)
        for event, block in zip(gone, released)
    )


def _is_of_graph(pool: tuple[int, int]) -> bool:
    """Return whether a pool belongs to a CUDA graph alone; torch numbers those of users in the second place."""
    return pool[0] > 0


class _Reader:
    """Reads a trace; holds back what happens between two calls of the program until the second is known."""

    def __init__(self, events: Sequence[Event], allocator: Allocator, made: Sequence[Block]) -> None:
        self._events = events
        self._has_private = any(event.pool not in (DEFAULT_POOL, UNKNOWN_POOL) for event in events)
        self._has_completions = has_completions(events)
        self._allocations = self._strangers = 0
        self._doubts: Counter[str] = Counter()
        self._live: dict[int, Operation] = {}
        self._waiting: dict[int, Operation] = {}
        self._trail: list[Operation | Event] = []
        """What happened since the last call: completed blocks (as operations) and released segments (as events)."""
        self._retried = False
        self._emptying = False
        self._reserved = allocator.reserved
        self._capacity = allocator.capacity
        self._capacity_changes = _capacity_changes(events, self._reserved, self._capacity)
        self._grown = self._least = 0
        """The least driver memory for this process that explains the segments created since the last call."""
        self._partial = False
        """Whether pages were released after others were mapped, so the next request grew a segment in vain."""
        self._capture_pools: set[tuple[int, int]] = set()
        self._flushing_pools: set[tuple[int, int]] = set()
        """Private pools of which a request flushed the cache, so they belong to MemPools."""
        self._unclear: list[int] = []
        """Failed requests that released nothing, in a flush or in a capture: their operations."""
        self._at = 0
        self._pooled: list[int] = []
        """Requests of the current run in one MemPool that may have come after a flush: their operations."""
        self._pooled_pool = DEFAULT_POOL
        self._in_pool = False
        self._operations: list[Operation] = []
        self._allocator = allocator
        self._twin = Replay(Program(self._operations, 0), allocator, made)

    def program(self) -> Program:
        self._no_request()
        for index in self._unclear:
            operation = self._operations[index]
            if operation.pool in self._capture_pools:
                self._operations[index] = operation._replace(kind=FAIL_IN_CAPTURE)
            elif operation.pool not in self._flushing_pools:
                self._doubts[FLUSH_OR_CAPTURE] += 1
        self._end_of_pooled()
        return Program(tuple(self._operations), self._allocations, self._strangers, dict(self._doubts))

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
        self._request(operation)

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
            self._append_completed(item for item in trail if isinstance(item, Operation))
            self._append_emptied([item for item in trail if isinstance(item, Event)])

    def _request(self, operation: Operation, capacity: int | None = None) -> None:
        """Append a MALLOC or FAIL after the trail. `capacity`: driver memory for the process, if known."""
        self._allocations += 1
        self._emptying = False
        least, self._least = self._least, 0
        if self._capacity is not None and least > self._capacity:
            self._set_capacity(least)
        if operation.kind == FAIL or self._retried or any(isinstance(item, Event) for item in self._trail):
            self._settle(operation, capacity)
            self._note_shared(operation)
        else:
            self._append_completed(self._trail)  # type: ignore[arg-type]
            self._operations.append(operation)
            self._note_shared(operation)
        self._trail, self._retried, self._grown, self._partial = [], False, 0, False

    def _settle(self, operation: Operation, capacity: int | None) -> None:
        """Find the explanation of the trail with which the twin reproduces the recording, and append it."""
        self._twin.run()
        unknown = operation.pool == UNKNOWN_POOL
        if unknown:
            operation = operation._replace(pool=DEFAULT_POOL)
        failed = operation.kind == FAIL
        if capacity is not None and capacity != self._capacity:
            self._set_capacity(capacity)
            self._twin.run()
        foreseen = self._allocator.foresee(*operation[2:])
        gone = [item for item in self._trail if isinstance(item, Event)]
        if foreseen is None or not foreseen.released or not _begins_with(gone, foreseen.released):
            self._append_emptied_pools(operation.pool)
            gone = [item for item in self._trail if isinstance(item, Event)]
        completed = [item for item in self._trail if isinstance(item, Operation)]
        first = self._trail.index(gone[0]) if gone else len(self._trail)
        done, late = completed[:first], completed[first:]
        if self._partial and gone:
            self._append_completed(done)
            self._operations.append(operation)
            self._twin.run()
            self._append_completed(late)
            return
        early, foreseen = self._explain(operation, done, gone, late)
        if foreseen is not None and foreseen.flushes and self._is_end_of_pool(gone, operation.pool):
            foreseen = None
        if unknown and not gone:
            operation = self._place(operation, foreseen)
        elif unknown and foreseen is None and not late:
            operation = self._place_by_release(operation, gone)
        if unknown and operation.kind == FAIL_IN_CAPTURE:
            self._append_completed([*done, *late])
            self._operations.append(operation)
            self._twin.run()
            return
        if failed and not gone and not late and (foreseen is None or _is_of_graph(operation.pool)):
            self._append_completed(done)
            self._operations.append(operation._replace(kind=FAIL_IN_CAPTURE))
            self._twin.run()
            self._capture_pools.add(operation.pool)
            return
        if foreseen is None and gone and not failed and self._grown and self._capacity is not None:
            self._doubts[FLUSH_OR_EMPTY_CACHE] += 1
            served = self._allocator.foresee(*operation[2:]) is None  # then empty_cache explains no new segment
            if self._capacity_changes or served or not self._is_flush(Foreseen([], True), gone, failed):
                early, foreseen = self._explain_by_capacity(operation, done, gone, late)
        if foreseen is None:
            self._append_completed([*done, *late])
            self._append_emptied(gone)
            self._operations.append(operation)
            return
        unclear = False
        if foreseen.flushes and gone and operation.pool != DEFAULT_POOL:
            self._flushing_pools.add(operation.pool)
        if foreseen.flushes and not self._retried:
            if not failed:
                self._doubts[FLUSH_OR_EMPTY_CACHE] += 1
            elif not self._trail and (operation.pool != DEFAULT_POOL or self._is_in_capture()):
                unclear = True
        self._append_completed(done[:early])
        self._append_released(gone[len(foreseen.released) :])
        if foreseen.flushes:
            self._flush_twin(operation, foreseen.released)
        if unclear:
            self._unclear.append(len(self._operations))
        self._operations.append(operation)
        if not foreseen.flushes:
            self._twin.run()
        self._append_completed([*done[early:], *late])
        if foreseen.flushes:
            self._twin.position = len(self._operations)

    def _place(self, operation: Operation, foreseen: Foreseen | None) -> Operation:
        """Return a failed request of unknown pool with a pool that explains it, or as one that cannot flush.

        foreseen: what it released in the default pool, None if it cannot have failed there after a flush.
        """
        pools = self._pools_around()
        if not self._fails_alone(*operation[2:]):
            return operation._replace(kind=FAIL_IN_CAPTURE, pool=self._exhausted_pool(operation, pools))
        if foreseen is None or not foreseen.flushes:
            return operation._replace(kind=FAIL_IN_CAPTURE)
        if self._has_private:
            self._doubts[FLUSH_OR_CAPTURE] += 1
            if DEFAULT_POOL not in pools and not self._trail:
                return operation._replace(kind=FAIL_IN_CAPTURE)
        return operation

    def _place_by_release(self, operation: Operation, gone: Sequence[Event]) -> Operation:
        """Return a failed request as one that cannot flush, if it released segments of its own pool in vain."""
        pool = gone[0].pool
        own = self._allocator.foresee(operation.size, operation.stream, pool)
        if own is not None and [block.size for block in own.released] == [event.size for event in gone]:
            return operation._replace(kind=FAIL_IN_CAPTURE, pool=pool)
        return operation

    def _pools_around(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the pools of the requests before and after the current one."""
        before = next((op for op in reversed(self._operations) if op.kind == MALLOC), None)
        after = next((event for event in self._events[self._at + 1 :] if event.action == ALLOC), None)
        return before.pool if before else DEFAULT_POOL, after.pool if after else DEFAULT_POOL

    def _exhausted_pool(self, operation: Operation, pools: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return a private pool, preferably one of `pools`, without a block for the request."""
        for pool in pools:
            if pool != DEFAULT_POOL and self._fails_alone(operation.size, operation.stream, pool):
                return pool
        return UNKNOWN_POOL

    def _fails_alone(self, request: int, stream: int, pool: tuple[int, int]) -> bool:
        """Return whether a request fails in the pool, without a flush, and releases nothing."""
        foreseen = self._allocator.foresee(request, stream, pool)
        return foreseen is not None and not foreseen.released and not self._allocator.has_memory(request, stream, pool)

    def _is_end_of_pool(self, gone: Sequence[Event], requested: tuple[int, int]) -> bool:
        """Return whether a MemPool's end released the segments: torch then releases those of its pool alone."""
        pools = {event.pool for event in gone}
        return (
            len(pools - {requested}) == len(pools) == 1
            and all(pool[1] and not self._allocator.is_released(pool) for pool in pools)
            and not self._retried
            and self._allocator.settings.torch >= (2, 8)
        )

    def _is_in_capture(self) -> bool:
        """Return whether the requests before and after belong to a CUDA graph: a request of a default pool on another
        stream then cannot flush the cache."""
        before = next((op for op in reversed(self._operations) if op.kind in (MALLOC, FAIL, FAIL_IN_CAPTURE)), None)
        after = next((event for event in self._events[self._at + 1 :] if event.action in (ALLOC, OOM)), None)
        pools = (before.pool if before else DEFAULT_POOL, after.pool if after else DEFAULT_POOL)
        return all(_is_of_graph(pool) or pool in self._capture_pools for pool in pools)

    def _note_shared(self, operation: Operation) -> None:
        """Note whether a MemPool with use_on_oom may have served the request after a flush, as before torch 2.11.

        The trace shows the same events for a request in the MemPool. A run of requests in one pool cannot have been
        made after flushes if one of them had another source of memory.
        """
        settings, pool = self._allocator.settings, operation.pool
        if pool != self._pooled_pool:
            self._end_of_pooled()
            self._pooled_pool = pool
        if pool[1] and (2, 8) <= settings.torch < (2, 11):
            if operation.kind == MALLOC and not self._grown:
                self._twin.run()
                if self._allocator.is_exhausted(operation.size, operation.stream):
                    self._pooled.append(_last(self._operations, MALLOC))
                    return
                if self._capacity_changes and self._allocator.is_exhausted(operation.size, operation.stream, full=True):
                    self._doubts[FLUSH_OR_MEMPOOL] += 1
                    return
            self._in_pool = True

    def _end_of_pooled(self) -> None:
        """The run of requests in one pool is over: if each may have come after a flush, assume that it did."""
        if self._pooled:
            self._doubts[FLUSH_OR_MEMPOOL] += len(self._pooled)
        if not self._in_pool:
            for index in self._pooled:
                self._operations[index] = self._operations[index]._replace(kind=BORROW)
        self._pooled, self._in_pool = [], False

    def _explain_by_capacity(
        self, operation: Operation, done: Sequence[Operation], gone: Sequence[Event], late: Sequence[Operation]
    ) -> tuple[int, Foreseen | None]:
        """Like _explain, but another process may have taken the driver's memory, so the first attempt failed."""
        before = self._capacity
        self._set_capacity(self._reserved + sum(event.size for event in gone))
        self._twin.run()
        found = self._explain(operation, done, gone, late)
        if found[1] is None:
            self._operations.pop()
            self._twin.position -= 1
            self._capacity = self._allocator.capacity = before
        return found

    def _explain(
        self, operation: Operation, done: Sequence[Operation], gone: Sequence[Event], late: Sequence[Operation]
    ) -> tuple[int, Foreseen | None]:
        """Return how many completed blocks preceded the request, and what the request released.

        The second is None if the allocator would not have done the same without a call of the program. The twin has
        then completed all blocks of the trail.
        """
        flush: tuple[int, Foreseen] | None = None
        for count in range(len(done) + 1):
            foreseen = self._allocator.foresee(*operation[2:])
            if foreseen is not None and foreseen.flushes and _begins_with(gone, foreseen.released):
                flush = count, foreseen
            if count < len(done):
                self._twin.complete(done[count].allocation)
        plain = (
            foreseen is not None
            and not (foreseen.flushes or late or self._retried)
            and len(gone) == len(foreseen.released)
            and _begins_with(gone, foreseen.released)
        )
        for later in late:
            self._twin.complete(later.allocation)
        if flush is not None and not self._is_flush(flush[1], gone, operation.kind == FAIL):
            flush = None
        if plain and flush is not None:
            self._doubts[FLUSH_OR_COLLECTION] += 1
        last = next((op for op in reversed(self._operations) if op.kind != CAPACITY), None)
        waited = any(last is None or completed.allocation != last.allocation for completed in done)
        if plain and (flush is None or not waited):  # blocks that waited for a stream rather ended in a flush
            return len(done), foreseen
        if flush is None and self._retried:
            return 0, Foreseen([], True)
        return (len(done), None) if flush is None else flush

    def _is_flush(self, foreseen: Foreseen, gone: Sequence[Event], failed: bool) -> bool:
        """Return whether a flush explains the released segments; all blocks of the trail must be completed."""
        expected = self._allocator.flush_sizes()
        for block in foreseen.released:
            sizes = expected.get(block.arena.pool.id, [])
            if block.size in sizes:
                sizes.remove(block.size)
        rest = gone[len(foreseen.released) :]
        complete = all(
            sorted(sizes) == sorted(event.size for event in rest if event.pool == pool)
            for pool, sizes in expected.items()
        )
        return complete and not self._allocator.waits and (failed or bool(gone))

    def _flush_twin(self, operation: Operation, released: Sequence[Block]) -> None:
        """Make the twin serve the request with a flush, ignoring its cache."""
        self._twin.run()
        failed = operation.kind == FAIL
        block = self._allocator.malloc_flushed(*operation[2:], released)
        if block is not None and failed:
            self._allocator.free(block)
            block = None
        self._twin.blocks.append(block)

    def _set_capacity(self, capacity: int) -> None:
        self._capacity = capacity
        self._operations.append(Operation(CAPACITY, 0, capacity, 0, DEFAULT_POOL))

    def _append_emptied_pools(self, requested: tuple[int, int]) -> None:
        """Handle private segments released first: a MemPool or graph ended.

        A flush starts with the default pool, and a request may release segments of its own pool.
        """
        events = [item for item in self._trail if isinstance(item, Event)]
        ended = list(takewhile(lambda event: event.pool not in (DEFAULT_POOL, requested), events))
        if not ended or len(ended) == len(events):
            return
        end = self._trail.index(ended[-1]) + 1
        self._append_completed(item for item in self._trail[:end] if isinstance(item, Operation))
        for pool in dict.fromkeys(event.pool for event in ended):
            self._append_emptied([event for event in ended if event.pool == pool])
        self._trail = self._trail[end:]
        self._twin.run()

    def _append_emptied(self, gone: Sequence[Event]) -> None:
        """Append the empty_cache that released these segments: of all pools, or of each private one that ended."""
        self._append_released(gone)
        pools = list(dict.fromkeys(event.pool for event in gone))
        if DEFAULT_POOL in pools:
            pools = [DEFAULT_POOL]
        self._operations += [Operation(EMPTY, 0, 0, 0, pool) for pool in pools]

    def _append_released(self, gone: Iterable[Event]) -> None:
        """A private pool releases its segments once its graph or MemPool is gone."""
        pools = dict.fromkeys(event.pool for event in gone if event.pool != DEFAULT_POOL)
        self._operations += [Operation(RELEASE, 0, 0, 0, pool) for pool in pools]

    def _append_completed(self, done: Iterable[Operation]) -> None:
        for operation in done:
            last = self._operations[-1]
            if last.kind == AWAIT and last.allocation == operation.allocation:
                self._operations[-1] = operation._replace(kind=FREE)
            else:
                self._operations.append(operation._replace(kind=COMPLETE))
