"""The beginning of a trace, found from its end."""

from __future__ import annotations

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import INACTIVE, Heap
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import Event
from gpufrag.model.trace.history import rewind
from gpufrag.model.trace.whatif import play, read_run
from helpers import GoldenCase
from simulated_trace import Recorder


def test_whole_trace_starts_with_an_empty_heap(golden_case: GoldenCase) -> None:
    beginning = rewind(golden_case.events, golden_case.heap)
    assert beginning.allocations == ()
    assert beginning.heap.segments == ()


def test_second_half_starts_where_the_first_ends(golden_case: GoldenCase) -> None:
    """Both halves agree on what is live between them."""
    events, middle = golden_case.events, len(golden_case.events) // 2
    live: dict[int, int] = {}
    for event in events[:middle]:
        if event.action == "alloc" and event.address is not None:
            live[event.address] = event.size
        elif event.action == "free_completed" and event.address is not None:
            del live[event.address]
    beginning = rewind(events[middle:], golden_case.heap)
    assert {event.address: event.size for event in beginning.allocations} == live


def test_adopted_heap_equals_its_source(golden_case: GoldenCase) -> None:
    events = golden_case.events
    heap = rewind(events[len(events) // 2 :], golden_case.heap).heap
    allocator = Allocator(heap.settings)
    for segment in heap.segments:
        allocator.adopt(segment)
    assert allocator.heap().segments == heap.segments
    assert allocator.reserved == sum(segment.size for segment in heap.segments)


def test_free_of_a_live_block_is_refused(golden_case: GoldenCase) -> None:
    live = next(b for s in golden_case.heap.segments for b in s.blocks() if b.state != INACTIVE)
    with pytest.raises(BadInput, match="event 0 frees"):
        rewind([Event("free_completed", live.address, live.requested, 0)], golden_case.heap)


def test_trace_of_another_heap_is_refused() -> None:
    with pytest.raises(BadInput, match="event 0 allocates 0x200, which is neither freed later nor live"):
        rewind([Event("alloc", 512, 100, 0)], Heap(()))


def test_segment_that_is_never_released_is_refused() -> None:
    with pytest.raises(BadInput, match="segment_alloc"):
        rewind([Event("segment_alloc", 512, 2 << 20, 0)], Heap(()))


@pytest.mark.parametrize("action", ["segment_free", "segment_unmap"])
@pytest.mark.parametrize("offset", [0, 512, -512])
def test_memory_released_twice_is_refused(action: str, offset: int) -> None:
    twice = [Event(action, address, 2 << 20, 0) for address in (8 << 20, (8 << 20) + offset)]
    with pytest.raises(BadInput, match=f"event 0 .{action}. releases"):
        rewind(twice, Heap(()))


GRAPH = (0, 1)
MIB = 1 << 20


def graph_job() -> Recorder:
    """A job whose graph has its own pool; no other code can use its free memory."""
    recorder = Recorder()
    kept = [recorder.malloc(size * MIB, pool=GRAPH) for size in (30, 4, 12)]
    for block in (kept[0], kept[1], recorder.malloc(24 * MIB)):
        assert block is not None
        recorder.free(block)
    for size, pool in ((6, GRAPH), (6, (0, 0)), (28, GRAPH), (40, (0, 0))):
        recorder.malloc(size * MIB, pool=pool)
    return recorder


def poolless(events: list[Event]) -> list[Event]:
    """The form of torch before 2.12."""
    return [event._replace(pool=(0, 0)) for event in events]


def test_private_pool_is_replayed_as_one() -> None:
    recorder = graph_job()
    run = read_run(poolless(recorder.trace), recorder.heap(), Driver())
    outcome = play(run, run.end.settings, None)
    assert outcome.same_end
    assert outcome.peak_reserved == recorder.peak_reserved
    assert {o.pool for o in run.program.operations} == {(0, 0), GRAPH}


def test_older_private_block_stays_in_its_pool() -> None:
    recorder = graph_job()
    run = read_run(poolless(recorder.trace[8:]), recorder.heap(), Driver())
    assert play(run, run.end.settings, None).same_end


def test_older_block_size_is_inferred_from_the_next() -> None:
    """A block of 5 MiB serves 4.5 MiB uncut, next to a free block that no event shows until it is used."""
    recorder = Recorder()
    first, second = recorder.malloc(5 * MIB), recorder.malloc(4 * MIB)
    assert first is not None
    assert second is not None
    recorder.free(first)
    block = recorder.malloc(9 * MIB // 2)
    assert block is first
    recorder.free(second)
    begin, before = len(recorder.trace), recorder.heap()
    recorder.malloc(3 * MIB)
    recorder.free(block)
    found = rewind(recorder.trace[begin:], recorder.heap()).heap
    assert [segment.sizes for segment in found.segments] == [segment.sizes for segment in before.segments]
