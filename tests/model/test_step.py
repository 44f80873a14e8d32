"""The heap at the peak of a recorded step: of real recordings, and of random programs on the simulated allocator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import AWAITING, INACTIVE, Heap, parse
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.step import StepEvents, read_step, step_events
from helpers import TESTS
from simulated_trace import Recorder

RECORDINGS = sorted((TESTS / "fixtures/steps").glob("*.json.gz"))
MIB = 1 << 20


def recording(path: Path) -> dict[str, Any]:
    raw = json.loads(gzip.decompress(path.read_bytes()))
    return raw | {"events": StepEvents(**raw["events"]), "heap": parse(raw["snapshot"])}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_recorded_step_has_torchs_own_peak(path: Path) -> None:
    raw = recording(path)
    step = read_step(raw["events"], raw["heap"])
    measured = measure(step.peak, Driver())
    assert (step.peak_active, step.start_active) == (raw["true_peak"], raw["start_active"])
    assert measured.large.active + measured.small.active == raw["true_peak"]
    assert step.allocations == sum(action == "alloc" for action in raw["events"].actions)


def columns(recorder: Recorder, begin: int) -> StepEvents:
    trace = recorder.trace[begin:]
    return StepEvents(*zip(*((e.action, e.address or 0, e.size, e.stream) for e in trace))) if trace else EMPTY


EMPTY = StepEvents((), (), (), ())


def plain(heap: Heap) -> Heap:
    """Without the requested bytes of free blocks, which are stale."""
    return Heap(tuple(s._replace(requested=_requested(s)) for s in heap.segments), heap.settings)


def _requested(segment: Any) -> tuple[int, ...]:
    return tuple(0 if state is INACTIVE else asked for asked, state in zip(segment.requested, segment.states))


SETTINGS = [
    Settings(),
    Settings(expandable_segments=True),
    Settings(max_split_size=32 * MIB),
    Settings(roundup_power2_divisions=(4,) * 16),
]
operation = st.tuples(st.sampled_from("mmmmffffsce"), st.integers(1, 60 * MIB) | st.integers(1, 2 * MIB))


def play(recorder: Recorder, live: list[Block], waiting: list[Block], kind: str, number: int) -> None:
    if kind == "m":
        if (block := recorder.malloc(number)) is not None:
            live.append(block)
    elif kind in "fs" and live:
        block = live.pop(number % len(live))
        if kind == "s":
            block.shared = True
            waiting.append(block)
        recorder.free(block)
    elif kind == "c" and waiting:
        recorder.finish(waiting.pop())
    elif kind == "e":
        recorder.empty_cache()


@given(st.lists(operation, max_size=30), st.lists(operation, max_size=60), st.sampled_from(SETTINGS))
def test_peak_of_random_program_is_exact(before, during, settings) -> None:
    limit = 400 * MIB  # so that some requests flush the cache, and some fail
    recorder = Recorder(settings, Driver(limit, limit))
    live: list[Block] = []
    waiting: list[Block] = []
    for kind, number in before:
        play(recorder, live, waiting, kind, number)
    begin, start = len(recorder.trace), recorder.active
    peak, heap = start, recorder.heap()
    for kind, number in during:
        play(recorder, live, waiting, kind, number)
        if recorder.active > peak:
            peak, heap = recorder.active, recorder.heap()
    events, end = columns(recorder, begin), recorder.heap()
    step = read_step(events, end)
    if step.start_active == start:  # else the rest that torch left to a block from before is not known
        assert (step.peak_active, plain(step.peak)) == (peak, plain(heap))
    assert 0 <= start - step.start_active <= MIB * len(before)
    counted = read_step(events, end, active_before=start)
    assert counted.start_active == start
    assert 0 <= counted.peak_active - peak <= start - step.start_active


def test_rest_that_torch_left_to_an_older_block_is_found_by_its_counter() -> None:
    """The block after it ended before the step, so no event of the step shows where the older one ends."""
    recorder = Recorder()
    _, hole, after = [recorder.malloc(size * MIB) for size in (6, 7, 7)]
    recorder.free(hole)
    older = recorder.malloc(6 * MIB + MIB // 2)
    recorder.free(after)
    begin, start = len(recorder.trace), recorder.active
    recorder.malloc(30 * MIB)
    recorder.free(older)
    events, end = columns(recorder, begin), recorder.heap()
    assert read_step(events, end).peak_active == start + 30 * MIB - MIB // 2
    assert read_step(events, end, active_before=start).peak_active == recorder.peak_active
    assert read_step(events, end, active_before=start + 2 * MIB).peak_active < recorder.peak_active, "another thread's"


def test_block_that_waits_for_a_stream_at_the_peak_is_awaiting() -> None:
    recorder = Recorder()
    block = recorder.malloc(30 * MIB)
    assert block is not None
    block.shared = True
    recorder.free(block)
    recorder.malloc(40 * MIB)
    recorder.finish(block)
    recorder.malloc(MIB)
    step = read_step(columns(recorder, 0), recorder.heap())
    assert step.peak_active == 70 * MIB
    assert [state for s in step.peak.segments for state in s.states if state == AWAITING] == [AWAITING]


def test_step_without_events_is_the_heap_itself() -> None:
    recorder = Recorder()
    recorder.malloc(30 * MIB)
    step = read_step(EMPTY, recorder.heap())
    assert (plain(step.peak), step.largest_request, step.allocations) == (plain(recorder.heap()), 0, 0)


def test_requests_of_a_step_are_counted() -> None:
    recorder = Recorder()
    for size in (MIB, 5 * MIB, 3 * MIB):
        recorder.malloc(size)
    step = read_step(columns(recorder, 0), recorder.heap())
    assert (step.largest_request, step.allocations, step.requested) == (5 * MIB, 3, 9 * MIB)


@pytest.mark.parametrize(
    "rows",
    [
        [("alloc", 0x1000, 512)],
        [("free_completed", 0, 512)],
        [("segment_alloc", 0x1000, 2 * MIB)],
        [("segment_free", 0, 2 * MIB)],
        [("free_completed", 0x1000, 512)],
    ],
)
def test_events_that_do_not_lead_to_the_heap_are_refused(rows) -> None:
    recorder = Recorder()
    recorder.malloc(30 * MIB)
    (segment,) = recorder.heap().segments
    heap = Heap((segment._replace(address=0),), Settings())
    events = StepEvents(*zip(*((*row, 0) for row in rows)))
    with pytest.raises(BadInput):
        read_step(events, heap)


def test_torch_trace_becomes_columns() -> None:
    trace = [
        {"action": "alloc", "addr": 7, "size": 512, "stream": 0, "time_us": 1},
        {"action": "oom", "device_free": 9, "size": 1024, "stream": 0, "time_us": 2},
    ]
    assert step_events(trace) == StepEvents(["alloc", "oom"], [7, 0], [512, 1024], [0, 0])
