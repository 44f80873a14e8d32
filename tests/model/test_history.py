"""The beginning of a trace, found from its end."""

from __future__ import annotations

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocator import Allocator
from gpufrag.model.events import Event, parse_rows
from gpufrag.model.heap import INACTIVE, Heap
from gpufrag.model.history import rewind
from helpers import GoldenCase


def events_of(case: GoldenCase) -> list[Event]:
    return parse_rows(case.raw["events"], case.raw["events_columns"])


def test_a_whole_trace_begins_with_nothing(golden_case: GoldenCase) -> None:
    beginning = rewind(events_of(golden_case), golden_case.heap)
    assert beginning.allocations == ()
    assert beginning.heap.segments == ()


def test_the_second_half_begins_where_the_first_ends(golden_case: GoldenCase) -> None:
    """What is live between the halves can be told from either side."""
    events = events_of(golden_case)
    middle = len(events) // 2
    live: dict[int, int] = {}
    for event in events[:middle]:
        if event.action == "alloc" and event.address is not None:
            live[event.address] = event.size
        elif event.action == "free_completed" and event.address is not None:
            del live[event.address]
    beginning = rewind(events[middle:], golden_case.heap)
    assert {event.address: event.size for event in beginning.allocations} == live


def test_an_adopted_heap_is_the_heap(golden_case: GoldenCase) -> None:
    events = events_of(golden_case)
    heap = rewind(events[len(events) // 2 :], golden_case.heap).heap
    allocator = Allocator(heap.settings)
    for segment in heap.segments:
        allocator.adopt(segment)
    assert allocator.heap().segments == heap.segments
    assert allocator.reserved == sum(segment.size for segment in heap.segments)


def test_a_trace_that_frees_what_stays_live_is_refused(golden_case: GoldenCase) -> None:
    live = next(b for s in golden_case.heap.segments for b in s.blocks() if b.state != INACTIVE)
    with pytest.raises(BadInput, match="event 0 frees"):
        rewind([Event("free_completed", live.address, live.requested, 0)], golden_case.heap)


def test_a_trace_of_another_heap_is_refused() -> None:
    with pytest.raises(BadInput, match="event 0 allocates 0x200, which is neither freed later nor live"):
        rewind([Event("alloc", 512, 100, 0)], Heap(()))


def test_a_segment_that_is_not_there_later_is_refused() -> None:
    with pytest.raises(BadInput, match="segment_alloc"):
        rewind([Event("segment_alloc", 512, 2 << 20, 0)], Heap(()))
