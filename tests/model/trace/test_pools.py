"""The pools of segments in traces without pool numbers, found from addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import DEFAULT_POOL, Heap
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.trace.events import Event
from gpufrag.model.trace.history import rewind
from gpufrag.model.trace.holdings import Memory
from gpufrag.model.trace.pools import UNKNOWN_POOL, Pooled, infer_pools
from gpufrag.model.trace.program import FAIL, FAIL_IN_CAPTURE, FLUSH_OR_PRIVATE_POOL, FREE, MALLOC
from gpufrag.model.trace.whatif import Run, begin, ends_as_recorded, read_run
from simulated_trace import Recorder

MIB = 1 << 20
GRAPH, OTHER = (0, 1), (0, 2)
PLAIN = Settings(torch=(2, 7))
EXPANDABLE = Settings(torch=(2, 7), expandable_segments=True)


def poolless(events: list[Event]) -> list[Event]:
    """The form of torch before 2.12."""
    return [event._replace(pool=DEFAULT_POOL) for event in events]


def inferred(recorder: Recorder, driver: Driver = Driver()) -> Pooled:
    end = recorder.heap()
    return infer_pools(rewind(poolless(recorder.trace), end), end, driver)


def groups(events: list[Event]) -> list[int]:
    """The pool of each segment event as its position among the pools that occur; 0 is the default pool."""
    order = [DEFAULT_POOL]
    for event in events:
        if event.pool not in order:
            order.append(event.pool)
    return [order.index(event.pool) for event in events if event.action.startswith("segment")]


def read(recorder: Recorder, driver: Driver = Driver()) -> Run:
    return read_run(poolless(recorder.trace), recorder.heap(), driver)


def malloc(recorder: Recorder, size: int, pool: tuple[int, int] = DEFAULT_POOL) -> Block:
    block = recorder.malloc(size, pool=pool)
    assert block is not None
    return block


def end_pool(recorder: Recorder, pool: tuple[int, int], *blocks: Block) -> None:
    for block in blocks:
        recorder.free(block)
    recorder.release_pool(pool)
    recorder.empty_cache()


def test_segment_that_lasts_has_the_pool_of_the_last_heap() -> None:
    recorder = Recorder(PLAIN)
    kept = [malloc(recorder, size * MIB, GRAPH) for size in (30, 4, 12)]
    for block in (kept[0], kept[1], malloc(recorder, 24 * MIB)):
        recorder.free(block)
    for size, pool in ((6, GRAPH), (6, DEFAULT_POOL), (28, GRAPH), (40, DEFAULT_POOL)):
        malloc(recorder, size * MIB, pool)
    assert list(inferred(recorder).beginning.events) == recorder.trace


@pytest.mark.parametrize("settings", [PLAIN, EXPANDABLE])
def test_segment_that_was_passed_over_is_of_an_ended_pool(settings: Settings) -> None:
    recorder = Recorder(settings)
    recorder.free(malloc(recorder, 30 * MIB, GRAPH))
    malloc(recorder, 30 * MIB)  # the free block in the graph's pool would fit
    end_pool(recorder, GRAPH)
    assert groups(list(inferred(recorder).beginning.events)) == groups(recorder.trace)
    assert ends_as_recorded(read(recorder))


def test_free_segment_that_outlives_a_flush_is_private() -> None:
    recorder = Recorder(PLAIN)
    recorder.free(malloc(recorder, 30 * MIB, GRAPH))
    recorder.free(malloc(recorder, 50 * MIB))
    recorder.empty_cache()
    malloc(recorder, 50 * MIB)
    end_pool(recorder, GRAPH)
    assert groups(list(inferred(recorder).beginning.events)) == [1, 0, 0, 0, 1]


def test_two_ended_pools_are_told_apart() -> None:
    recorder = Recorder(PLAIN)
    first, second = malloc(recorder, 30 * MIB, GRAPH), malloc(recorder, 36 * MIB, GRAPH)
    recorder.free(first)
    third = malloc(recorder, 28 * MIB, OTHER)
    recorder.free(malloc(recorder, 28 * MIB))
    end_pool(recorder, GRAPH, second)
    end_pool(recorder, OTHER, third)
    run = read(recorder)
    assert ends_as_recorded(run)
    seen: list[Event] = []
    begin(run, run.end.settings, None, observe=seen.append).run()
    recorded = [event[:3] for event in recorder.trace if event.action.startswith("segment")]
    assert sorted(event[:3] for event in seen) == sorted(recorded)


def test_free_block_that_waited_for_a_stream_is_no_evidence() -> None:
    """Torch finds that a block is free while it flushes, after it has looked for one."""
    recorder = Recorder(PLAIN, Driver(limit=100 * MIB))
    block = malloc(recorder, 40 * MIB)
    malloc(recorder, 2 * MIB)
    recorder.record_stream(block, 1)
    recorder.free(block)
    recorder.free(malloc(recorder, 30 * MIB))
    malloc(recorder, 36 * MIB)
    assert set(groups(list(inferred(recorder).beginning.events))) == {0}


def test_trace_of_one_pool_has_no_unclear_segments() -> None:
    recorder = Recorder(PLAIN)
    for size in (30, 4, 12, 50):
        recorder.free(malloc(recorder, size * MIB))
    recorder.empty_cache()
    found = inferred(recorder)
    assert found.unclear == 0
    assert set(groups(list(found.beginning.events))) == {0}


def test_two_segments_of_which_one_is_private_are_unclear() -> None:
    recorder = Recorder(PLAIN)
    first = malloc(recorder, 30 * MIB, GRAPH)
    recorder.free(first)
    second = malloc(recorder, 30 * MIB)
    end_pool(recorder, GRAPH, second)
    assert inferred(recorder).unclear == 2
    assert read(recorder).unclear_segments == 2


def test_failed_request_has_no_pool() -> None:
    recorder = Recorder(PLAIN, Driver(limit=30 * MIB))
    recorder.malloc(40 * MIB)
    assert [event.pool for event in inferred(recorder).beginning.events] == [UNKNOWN_POOL]


def test_request_that_failed_although_the_default_pool_had_room_was_private() -> None:
    recorder = Recorder(PLAIN, Driver(limit=60 * MIB))
    block = malloc(recorder, 40 * MIB)
    kept = malloc(recorder, 12 * MIB, GRAPH)
    recorder.free(block)
    assert recorder.malloc(38 * MIB, pool=GRAPH) is None
    malloc(recorder, 39 * MIB)
    recorder.free(kept)
    run = read(recorder, Driver(limit=60 * MIB))
    assert [o.pool for o in run.program.operations if o.kind == FAIL_IN_CAPTURE] == [GRAPH]
    assert ends_as_recorded(run)
    assert run.program.doubts == {FLUSH_OR_PRIVATE_POOL: 1}


def test_failed_request_that_released_a_segment_in_vain_was_private() -> None:
    settings, driver = replace(PLAIN, max_split_size=64 * MIB), Driver(limit=200 * MIB)
    recorder = Recorder(settings, driver)
    recorder.free(malloc(recorder, 100 * MIB, GRAPH))
    malloc(recorder, 60 * MIB)
    recorder.free(malloc(recorder, MIB))  # a flush would release it
    assert recorder.malloc(150 * MIB, pool=GRAPH) is None
    run = read(recorder, driver)
    assert [o.kind for o in run.program.operations if o.kind != FREE] == [MALLOC, MALLOC, MALLOC, FAIL_IN_CAPTURE]
    assert ends_as_recorded(run)
    assert run.program.doubts == {}


def test_request_that_fails_although_a_flush_makes_room_did_not_flush() -> None:
    settings, driver = replace(PLAIN, max_split_size=64 * MIB), Driver(limit=200 * MIB)
    recorder = Recorder(settings, driver)
    recorder.free(malloc(recorder, 100 * MIB))
    recorder.free(malloc(recorder, 66 * MIB))
    recorder.capturing = True
    assert recorder.malloc(190 * MIB) is None
    recorder.capturing = False
    run = read(recorder, driver)
    assert run.program.operations[-1].kind == FAIL_IN_CAPTURE
    assert ends_as_recorded(run)


def test_failed_request_with_nothing_to_release_is_a_doubt() -> None:
    recorder = Recorder(PLAIN, Driver(limit=60 * MIB))
    malloc(recorder, 40 * MIB)
    assert recorder.malloc(38 * MIB) is None
    run = read(recorder, Driver(limit=60 * MIB))
    assert [o.kind for o in run.program.operations] == [MALLOC, FAIL]
    assert run.program.doubts == {FLUSH_OR_PRIVATE_POOL: 1}


def test_failed_request_between_those_of_a_graph_was_in_the_graph() -> None:
    recorder = Recorder(PLAIN, Driver(limit=60 * MIB))
    malloc(recorder, 12 * MIB, GRAPH)
    assert recorder.malloc(58 * MIB, pool=GRAPH) is None
    malloc(recorder, 12 * MIB, GRAPH)
    run = read(recorder, Driver(limit=60 * MIB))
    assert [o.kind for o in run.program.operations] == [MALLOC, FAIL_IN_CAPTURE, MALLOC]
    assert run.program.doubts == {FLUSH_OR_PRIVATE_POOL: 1}


def test_kept_free_segment_is_private_where_garbage_is_collected() -> None:
    settings, driver = replace(PLAIN, garbage_collection_threshold=0.5), Driver(limit=200 * MIB)
    recorder = Recorder(settings, driver)
    recorder.free(malloc(recorder, 80 * MIB, GRAPH))
    malloc(recorder, 60 * MIB)
    malloc(recorder, 2 * MIB)
    end_pool(recorder, GRAPH)
    assert groups(list(inferred(recorder, driver).beginning.events)) == [1, 0, 0, 1]


def test_older_segment_is_of_an_ended_pool() -> None:
    recorder = Recorder(PLAIN)
    kept = malloc(recorder, 30 * MIB, GRAPH)
    recorder.free(kept)
    del recorder.trace[:]
    malloc(recorder, 30 * MIB)
    recorder.empty_cache()
    end_pool(recorder, GRAPH)
    beginning = inferred(recorder).beginning
    assert [segment.private for segment in beginning.heap.segments] == [True]
    assert ends_as_recorded(read(recorder))


def test_plain_segment_among_expandable_ones_was_private_before_2_5() -> None:
    recorder = Recorder(replace(EXPANDABLE, torch=(2, 4)))
    kept = malloc(recorder, 30 * MIB, GRAPH)
    malloc(recorder, 30 * MIB)
    end_pool(recorder, GRAPH, kept)
    assert groups(list(inferred(recorder).beginning.events)) == [1, 0, 1]


def test_pairs_of_segments_that_differ_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    count, size = 40, 20 << 20
    events = [Event("segment_map", (1 << 44) + 2 * place * size, size, 0) for place in range(count)]
    heap = Heap((), Settings(expandable_segments=True))
    memory = Memory(heap, Driver(), {})
    monkeypatch.setattr(memory, "_pairs_left", 100)
    for event in events:
        memory.grow(event, None)
    assert 100 <= sum(len(holding.others) for holding in memory.holdings) / 2 < 100 + count


def test_survivals_of_flushes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    count, size = 40, 20 << 20
    memory = Memory(Heap((), PLAIN), Driver(), {})
    for place in range(count):
        memory.grow(Event("segment_alloc", (1 << 44) + 2 * place * size, size, 0), None)
    memory.end_call()
    assert len(list(memory.releasable())) == count
    monkeypatch.setattr(memory, "_survivals_left", 100)
    assert [len(list(memory.releasable())) for _ in range(4)] == [count, count, 20, 0]


def test_free_page_of_an_expandable_segment_is_releasable() -> None:
    memory, at = Memory(Heap((), EXPANDABLE), Driver(), {}), 1 << 44
    holding = memory.grow(Event("segment_map", at, 60 * MIB, 0), None)
    memory.take(holding, 0, Event("alloc", at, 41 * MIB, 0))
    memory.end_call()
    assert list(memory.releasable()) == []
    memory.put(at)
    assert list(memory.releasable()) == [holding]
    memory.shrink(holding, Event("segment_unmap", at, 60 * MIB, 0))
    assert list(memory.releasable()) == []
