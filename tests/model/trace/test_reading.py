"""The program behind a trace: from its events, and with the help of the simulated allocator."""

from __future__ import annotations

from typing import Any

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, Heap, Segment
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import Event
from gpufrag.model.trace.no_split import unsplit_pools
from gpufrag.model.trace.program import (
    AWAIT,
    BORROW,
    COMPLETE,
    EMPTY,
    FAIL,
    FAIL_IN_CAPTURE,
    FREE,
    MALLOC,
    RELEASE,
    Program,
    Replay,
)
from gpufrag.model.trace.reading import read_program
from gpufrag.model.trace.whatif import ends_as_recorded, read_run

MIB = 1 << 20


def kinds(*events: Event, **recorded: Any) -> list[int]:
    return [operation.kind for operation in read_program(events, **recorded).operations]


def alloc(address: int, size: int = 100) -> Event:
    return Event("alloc", address, size, 0)


def free(address: int, size: int = 100) -> list[Event]:
    return [Event("free_requested", address, size, 0), Event("free_completed", address, size, 0)]


def replayed(program: Program, driver: Driver = Driver()) -> Replay:
    replay = Replay(program, Allocator(driver=driver))
    replay.run()
    return replay


def segment(action: str, size: int, address: int = 0) -> Event:
    return Event(f"segment_{action}", address, size, 0)


def test_free_completes_at_once_or_waits() -> None:
    requested, completed = free(4096)
    assert kinds(alloc(4096), requested, completed) == [MALLOC, FREE]
    assert kinds(alloc(4096), requested, alloc(8192), completed) == [MALLOC, AWAIT, MALLOC, COMPLETE]
    assert kinds(alloc(4096), requested) == [MALLOC, AWAIT]


def test_missing_action_is_no_wait() -> None:
    requested, completed = free(4096)
    assert kinds(alloc(4096), requested, alloc(8192), alloc(4096)) == [MALLOC, FREE, MALLOC, MALLOC]
    assert kinds(alloc(4096), completed, alloc(8192), alloc(4096)) == [MALLOC, FREE, MALLOC, MALLOC]


def test_allocating_an_address_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="event 1 allocates 0x1000, which is still allocated"):
        kinds(alloc(4096), alloc(4096))


def test_frees_of_blocks_older_than_the_trace_are_counted() -> None:
    program = read_program([*free(4096), alloc(4096), *free(4096)])
    assert [operation.kind for operation in program.operations] == [MALLOC, FREE]
    assert program.strangers == 1


def test_operations_of_one_block_carry_its_number() -> None:
    program = read_program([alloc(4096), alloc(8192), *free(4096)])
    assert [operation.allocation for operation in program.operations] == [0, 1, 0]
    assert program.allocations == 2


def test_release_of_segments_is_an_empty_cache() -> None:
    gone = [segment("free", 20 * MIB), segment("free", 2 * MIB)]
    assert kinds(segment("alloc", 22 * MIB), *gone, alloc(4096)) == [EMPTY, MALLOC]
    assert kinds(segment("alloc", 22 * MIB), *gone) == [EMPTY]
    new = [segment("alloc", 20 * MIB), alloc(4096, 3 * MIB)]
    assert kinds(segment("alloc", 22 * MIB), *gone, *new, limit=100 * MIB) == [EMPTY, MALLOC]


def used_once(size: int, address: int = 1 << 30) -> list[Event]:
    """A segment whose only block is freed."""
    return [segment("alloc", size, address), alloc(address, size), *free(address, size)]


def replaced(old: int, new: int) -> list[Event]:
    """A free segment goes, and one of another size comes for a request."""
    return [*used_once(old), segment("free", old, 1 << 30), segment("alloc", new, 2 << 30), alloc(2 << 30, new)]


def test_release_at_the_limit_is_no_empty_cache() -> None:
    events = replaced(22 * MIB, 30 * MIB)
    assert kinds(*events, limit=40 * MIB) == [MALLOC, FREE, MALLOC]
    assert kinds(*events) == [MALLOC, FREE, EMPTY, MALLOC]


def test_release_before_an_oom_is_no_empty_cache() -> None:
    events = [*used_once(22 * MIB), segment("free", 22 * MIB, 1 << 30), Event("oom", None, 90 * MIB, 0)]
    assert kinds(*events, limit=40 * MIB) == [MALLOC, FREE, FAIL]


def test_driver_may_be_the_limit() -> None:
    allocator = Allocator(driver=Driver(free=42 * MIB))
    assert kinds(*replaced(22 * MIB, 30 * MIB), allocator=allocator) == [MALLOC, FREE, MALLOC]


def test_collection_is_no_empty_cache() -> None:
    settings, events = Settings(garbage_collection_threshold=0.5), replaced(30 * MIB, 36 * MIB)
    assert kinds(*events, settings=settings, limit=50 * MIB) == [MALLOC, FREE, MALLOC]
    assert kinds(*events, settings=settings, limit=80 * MIB) == [MALLOC, FREE, EMPTY, MALLOC]


def test_release_without_need_is_an_empty_cache() -> None:
    """The limit stands against a new segment, but none was needed: the free one was there since before."""
    made, went = replaced(30 * MIB, 22 * MIB)[:4], replaced(30 * MIB, 22 * MIB)[4:]
    assert kinds(*made, alloc(4096), *went, limit=40 * MIB) == [MALLOC, FREE, MALLOC, EMPTY, MALLOC]


def test_unused_free_block_was_completed_by_the_flush() -> None:
    """At the limit a request makes a new segment although a larger block seems to be free: it was not yet."""
    events = replaced(30 * MIB, 22 * MIB)
    program = read_program(events, limit=40 * MIB)
    assert [o.kind for o in program.operations] == [MALLOC, AWAIT, MALLOC, COMPLETE]
    replay = replayed(program, Driver(limit=40 * MIB))
    assert (replay.allocator.reserved, replay.allocator.counters.alloc_retries) == (22 * MIB, 1)


def test_request_fails_although_its_flush_completes_a_block() -> None:
    """The pool is not searched again: the block stays in a segment with another live one."""
    first, second = 1 << 30, (1 << 30) + 12 * MIB
    made = [segment("alloc", 30 * MIB, first), alloc(first, 30 * MIB), *free(first, 30 * MIB)]
    cut = [alloc(first, 12 * MIB), alloc(second, 18 * MIB)]
    requested, completed = free(first, 12 * MIB)
    events = [*made, *cut, requested, completed, Event("oom", None, 12 * MIB, 0)]
    assert kinds(*events, limit=40 * MIB)[-3:] == [AWAIT, FAIL, COMPLETE]


def test_completion_after_a_release_belongs_to_its_flush() -> None:
    settings = Settings(max_split_size=20 * MIB)
    requested, completed = free(3 << 30, 24 * MIB)
    pending = [segment("alloc", 24 * MIB, 3 << 30), alloc(3 << 30, 24 * MIB)]
    gone = [segment("free", 22 * MIB, 1 << 30), completed, segment("free", 24 * MIB, 3 << 30)]
    after = [segment("alloc", 50 * MIB, 4 << 30), alloc(4 << 30, 50 * MIB)]
    events = [*pending, *used_once(22 * MIB), requested, *gone, *after]
    assert kinds(*events, settings=settings, limit=60 * MIB) == [MALLOC, MALLOC, FREE, AWAIT, MALLOC, COMPLETE]


def test_mark_distinguishes_empty_cache_from_flush() -> None:
    events = replaced(22 * MIB, 30 * MIB)
    asked = [*events[:4], Event("empty_cache", None, 0, 0), *events[4:]]
    program = read_program(asked, limit=40 * MIB)
    assert [operation.kind for operation in program.operations] == [MALLOC, FREE, EMPTY, MALLOC]
    assert (program.inferred, read_program(events, limit=40 * MIB).inferred) == (0, 1)


def test_mark_distinguishes_flush_from_collection() -> None:
    """The block goes either way; but it was not yet complete where the request had to flush for it."""
    settings, events = Settings(garbage_collection_threshold=0.5), replaced(30 * MIB, 36 * MIB)
    marked = [*events[:3], Event("retry", None, 0, 0), *events[3:]]
    assert kinds(*events, settings=settings, limit=50 * MIB) == [MALLOC, FREE, MALLOC]
    assert kinds(*marked, settings=settings, limit=50 * MIB) == [MALLOC, AWAIT, MALLOC, COMPLETE]


def test_marked_empty_cache_may_return_nothing() -> None:
    assert kinds(Event("empty_cache", None, 0, 0), alloc(4096)) == [EMPTY, MALLOC]


def test_private_pool_that_returns_segments_was_released() -> None:
    graph = (0, 1)
    events = [event._replace(pool=graph) for event in used_once(22 * MIB)]
    gone = segment("free", 22 * MIB, 1 << 30)._replace(pool=graph)
    program = read_program([*events, gone])
    assert [operation.kind for operation in program.operations] == [MALLOC, FREE, RELEASE, EMPTY]
    replay = replayed(program)
    assert replay.allocator.reserved == 0


def test_private_segments_that_go_before_a_request_ended_a_mempool() -> None:
    """At the limit a flush releases them too, but a MemPool releases them as soon as it ends."""
    own = [event._replace(pool=(0, 1)) for event in [*used_once(22 * MIB), segment("free", 22 * MIB, 1 << 30)]]
    program = read_program([*own, segment("alloc", 30 * MIB, 2 << 30), alloc(2 << 30, 30 * MIB)], limit=40 * MIB)
    assert [operation.kind for operation in program.operations] == [MALLOC, FREE, RELEASE, EMPTY, MALLOC]


def test_end_of_a_mempool_released_no_block_of_the_default_pool() -> None:
    """A request that releases a block of the same size in the default pool would explain the trace as well."""
    own = [event._replace(pool=(0, 1)) for event in used_once(30 * MIB, 3 << 30)]
    gone = segment("free", 30 * MIB, 3 << 30)._replace(pool=(0, 1))
    new = [segment("alloc", 36 * MIB, 2 << 30), alloc(2 << 30, 36 * MIB)]
    events = [*used_once(30 * MIB), *own, gone, *new]
    allocator = Allocator(Settings(max_split_size=20 * MIB), Driver(free=1 << 40))
    assert kinds(*events, allocator=allocator) == [MALLOC, FREE, MALLOC, FREE, RELEASE, EMPTY, MALLOC]


@pytest.mark.parametrize(("pool", "doubts"), [((1, 0), {}), ((0, 1), {"flush or CUDA graph capture": 1})])
def test_failed_request_of_a_graph_pool_did_not_flush(pool: tuple[int, int], doubts: dict[str, int]) -> None:
    """Torch puts the number of a pool that a user made in the second place; that may be a MemPool's or a graph's."""
    program = read_program([Event("oom", None, 50 * MIB, 0, pool)], limit=40 * MIB)
    assert [operation.kind for operation in program.operations] == [FAIL if doubts else FAIL_IN_CAPTURE]
    assert program.doubts == doubts


def test_freed_block_that_waits_for_a_stream_shows_that_its_pool_does_not_split() -> None:
    heap = pooled(20 * MIB, requested=3 * MIB)
    waiting = heap.segments[0]._replace(states=(AWAITING,))
    assert unsplit_pools((), Heap((waiting,))) == {(0, 1)}


def test_pages_mapped_in_vain_prove_a_flush() -> None:
    """Of two holes the first was filled, the second was not: the request released both and failed."""
    events = [
        *(segment("map", 20 * MIB, 1 << 30), alloc(1 << 30, 15 * MIB)),
        *(segment("map", 40 * MIB, (1 << 30) + 20 * MIB), *free(1 << 30, 15 * MIB)),
        *(segment("unmap", 60 * MIB, 1 << 30), Event("oom", 70 * MIB, 90 * MIB, 0)),
    ]
    program = read_program(events, allocator=Allocator(Settings(expandable_segments=True), Driver(free=1 << 40)))
    assert [operation.kind for operation in program.operations if operation.kind == EMPTY] == []
    assert program.doubts == {}


def pooled(*sizes: int, requested: int, pool: tuple[int, int] = (0, 1)) -> Heap:
    """A private segment whose first block is live."""
    states = (ALLOCATED, *[INACTIVE] * (len(sizes) - 1))
    return Heap((Segment(0, 1 << 30, 0, False, pool, False, sizes, (requested, *[0] * (len(sizes) - 1)), states),))


@pytest.mark.parametrize("end", [pooled(20 * MIB, requested=3 * MIB), pooled(3 * MIB, 17 * MIB, requested=3 * MIB)])
def test_last_heap_shows_whether_a_pool_splits_blocks(end: Heap) -> None:
    events = [segment("alloc", 20 * MIB, 1 << 30), alloc(1 << 30, 3 * MIB)]
    run = read_run([event._replace(pool=(0, 1)) for event in events], end, Driver())
    assert (run.unsplit == {(0, 1)}) == (len(end.segments[0].sizes) == 1)
    assert ends_as_recorded(run)


@pytest.mark.parametrize("retries", [0, 1])
def test_mempool_may_have_served_a_request_after_a_flush(retries: int) -> None:
    """In torch 2.10 a MemPool with use_on_oom is the last resort; a request of the same run before it excludes that."""
    pool, settings = (0, 1), Settings(torch=(2, 10))
    made = [segment("alloc", 30 * MIB, 1 << 30), alloc(1 << 30, 30 * MIB), *free(1 << 30, 30 * MIB)]
    default = [segment("alloc", 30 * MIB, 2 << 30), alloc(2 << 30, 30 * MIB)]
    events = [event._replace(pool=pool) for event in made] + default
    events += [] if retries else [event._replace(pool=pool) for event in [alloc(3 << 30, 512)]]
    events += [alloc(1 << 30, 30 * MIB)._replace(pool=pool)]
    if not retries:
        events.insert(-2, segment("alloc", 2 * MIB, 3 << 30)._replace(pool=pool))
    program = read_program(events, settings, limit=62 * MIB)
    replay = Replay(program, Allocator(settings, Driver(limit=62 * MIB)))
    replay.run()
    assert program.doubts == {"flush or request in a MemPool": 1}
    assert (replay.failed, replay.allocator.counters.alloc_retries) == (0, retries)


def test_mempool_may_serve_a_request_that_collected_garbage() -> None:
    """empty_cache would have released the small segment too."""
    own = [event._replace(pool=(0, 1)) for event in used_once(40 * MIB, 4 << 30)]
    small = [segment("alloc", 2 * MIB, 2 << 30), alloc(2 << 30), *free(2 << 30)]
    request = [segment("free", 30 * MIB, 1 << 30), alloc(4 << 30, 36 * MIB)._replace(pool=(0, 1))]
    settings = Settings(torch=(2, 12), garbage_collection_threshold=0.8)
    events = [*own, *small, *used_once(30 * MIB), *request]
    assert kinds(*events, settings=settings, limit=75 * MIB) == [*[MALLOC, FREE] * 3, BORROW]


@pytest.mark.parametrize("size", [1024, MIB, 2 * MIB, 20 * MIB])
def test_failed_request_keeps_the_recorded_size(size: int) -> None:
    (operation,) = read_program([Event("oom", None, size, 0)]).operations
    assert (operation.kind, operation.size) == (FAIL, size)


def test_replay_can_be_stepped() -> None:
    program = read_program([alloc(4096), alloc(8192), *free(4096)])
    replay = Replay(program, Allocator())
    replay.run(until=2)
    assert (replay.position, replay.done, replay.allocator.active) == (2, False, 1024)
    replay.run()
    assert (replay.position, replay.done, replay.allocator.active) == (3, True, 512)


def test_replay_continues_after_a_failed_request() -> None:
    program = read_program([alloc(4096, 30 * MIB), alloc(8192, 30 * MIB), *free(8192), *free(4096)])
    replay = replayed(program, Driver(limit=40 * MIB))
    assert (replay.allocator.counters.ooms, replay.allocator.active) == (1, 0)


def test_recorded_failure_that_succeeds_is_freed_again() -> None:
    replay = replayed(read_program([Event("oom", None, 30 * MIB, 0)]))
    assert (replay.allocator.active, replay.allocator.reserved) == (0, 30 * MIB)


def test_replay_flushes_where_the_program_did() -> None:
    replay = replayed(read_program([segment("alloc", 2 * MIB), alloc(1), *free(1), segment("free", 2 * MIB)]))
    assert replay.allocator.reserved == 0


def failing(free: int) -> list[Event]:
    """A process of 40 MiB that asks for 30 MiB more while the driver has `free` bytes."""
    made = Event("segment_alloc", 1 << 30, 40 * MIB, 0)
    return [made, alloc(1 << 30, 40 * MIB), Event("oom", free, 30 * MIB, 0)]


def test_failed_request_sets_the_capacity_of_the_driver() -> None:
    program = read_program(failing(free=10 * MIB))
    replay = replayed(program)
    assert (replay.allocator.capacity, replay.failed, replay.allocator.counters.ooms) == (50 * MIB, 0, 1)


def test_failed_request_with_free_memory_reveals_the_limit() -> None:
    columns = (40 * MIB,), (40 * MIB,), (ALLOCATED,)
    heap = Heap((Segment(0, 1 << 30, 0, False, DEFAULT_POOL, False, *columns),))
    run = read_run(failing(free=1 << 30), heap, Driver())
    assert run.recorded_limit == 68 * MIB
    assert ends_as_recorded(run)


def test_neighbour_that_takes_memory_explains_a_flush() -> None:
    """The driver had room for the third segment until another process took it, as the request after it shows."""
    grown = [Event("segment_alloc", n << 30, 40 * MIB, 0) for n in (1, 2, 3)]
    requests = [alloc(n << 30, 40 * MIB) for n in (1, 2)]
    events = [
        *(grown[0], requests[0], grown[1], requests[1]),
        Event("oom", 2 * MIB, 100 * MIB, 0),
        *free(1 << 30),
        Event("segment_free", 1 << 30, 40 * MIB, 0),
        grown[2],
        alloc(3 << 30, 40 * MIB + 512),
    ]
    allocator = Allocator(driver=Driver(free=1 << 40))
    program = read_program(events, allocator=Allocator(driver=Driver(free=1 << 40)))
    replay = Replay(program, allocator)
    replay.run()
    assert allocator.counters.alloc_retries == 2
    assert program.doubts == {"flush or empty_cache": 1}
