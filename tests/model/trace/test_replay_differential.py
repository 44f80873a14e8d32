"""The simulator against the real allocator on random programs: rules that no case of tests/golden covers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import DEFAULT_POOL, Heap, parse
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import EMPTY_CACHE, GROWS, RETRY, SHRINKS, Event, parse_rows
from gpufrag.model.trace.program import Replay
from gpufrag.model.trace.reading import places, read_program
from gpufrag.model.trace.whatif import play, read_run, shape
from helpers import TESTS

FOLDER = TESTS / "fixtures" / "differential"
NAMES = tuple(sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz")))
TIMING = {"differential-13": 103, "differential-134": 475, "differential-65": 613}
"""Recordings whose retries depend on when the GPU was done, and the first event of a call where they may differ."""


@dataclass(frozen=True)
class Case:
    raw: dict[str, Any]
    heap: Heap
    events: list[Event]
    driver: Driver


@cache
def case(name: str) -> Case:
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        raw = json.load(file)
    heap = parse({"segments": raw["segments"], "allocator_settings": {**raw["settings"], "torch": raw["torch"]}})
    events = parse_rows(raw["events"], raw["events_columns"])
    return Case(raw, heap, events, Driver(raw["driver_free_before"], raw["driver_total"], raw["cap_bytes"]))


@dataclass(frozen=True)
class Run:
    simulated: list[Event]
    allocator: Allocator
    inferred: int


def run(name: str, events: Sequence[Event] | None = None) -> Run:
    recorded = case(name)
    events = recorded.events if events is None else events
    told: list[Event] = []

    def allocator(observed: list[Event]) -> Allocator:
        return Allocator(recorded.heap.settings, recorded.driver, AddressSpace(places(events)), observed.append)

    program = read_program(events, allocator=allocator([]))
    replay = Replay(program, allocator(told))
    replay.run()
    return Run(told, replay.allocator, program.inferred)


run_once = cache(run)


def segments_of(events: Sequence[Event]) -> list[tuple[str, int]]:
    return [(event.action, event.size) for event in events if event.action in GROWS | SHRINKS]


def shape_of(heap: Heap) -> list[tuple[Any, ...]]:
    """Private pools have no numbers in these recordings."""
    return sorted((small, pool != DEFAULT_POOL, *rest) for small, pool, *rest in shape(heap))


@pytest.mark.parametrize("name", NAMES)
def test_every_segment_comes_and_goes_as_recorded(name: str) -> None:
    assert segments_of(run_once(name).simulated) == segments_of(case(name).events)


@pytest.mark.parametrize("name", NAMES)
def test_the_heap_ends_block_for_block_as_recorded(name: str) -> None:
    assert shape_of(run_once(name).allocator.heap()) == shape_of(case(name).heap)


@pytest.mark.parametrize("name", NAMES)
def test_the_counters_and_peaks_are_torch_s(name: str) -> None:
    allocator, stats = run_once(name).allocator, case(name).raw["stats"]
    counters = allocator.counters
    assert (counters.ooms, counters.device_allocs, counters.device_frees) == tuple(
        stats[key] for key in ("num_ooms", "num_device_alloc", "num_device_free")
    )
    assert allocator.peak_reserved == stats["reserved_bytes.all.peak"]
    assert allocator.peak_active == stats["active_bytes.all.peak"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TIMING])
def test_the_retries_are_torch_s(name: str) -> None:
    assert run_once(name).allocator.counters.alloc_retries == case(name).raw["stats"]["num_alloc_retries"]


@pytest.mark.parametrize(("name", "begin"), TIMING.items())
def test_a_collection_and_a_flush_may_leave_the_same_trace(name: str, begin: int) -> None:
    """A block that goes was complete when the request began, or not before its flush: both fit what was recorded."""
    events = case(name).events
    flushed = run(name, [*events[:begin], Event(RETRY, None, 0, 0), *events[begin:]])
    collected = run_once(name)
    assert flushed.simulated == collected.simulated
    assert flushed.allocator.heap() == collected.allocator.heap()
    assert flushed.allocator.counters.alloc_retries == collected.allocator.counters.alloc_retries + 1


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("differential")])
def test_a_trace_without_marks_leads_to_the_same_segments_and_heap(name: str) -> None:
    """And to the same retries, but for the flushes that had to be inferred."""
    found = run(name, [event for event in case(name).events if event.action != EMPTY_CACHE])
    retries = case(name).raw["stats"]["num_alloc_retries"]
    assert segments_of(found.simulated) == segments_of(case(name).events)
    assert shape_of(found.allocator.heap()) == shape_of(case(name).heap)
    assert abs(found.allocator.counters.alloc_retries - retries) <= found.inferred


@pytest.mark.parametrize("name", NAMES)
def test_a_user_s_replay_finds_the_recorded_peak(name: str) -> None:
    recorded = case(name)
    user = read_run(recorded.events, recorded.heap, recorded.driver, recorded.driver.limit)
    outcome = play(user, recorded.heap.settings, recorded.driver.limit)
    assert outcome.peak_reserved == recorded.raw["stats"]["reserved_bytes.all.peak"]
    assert outcome.failed == 0
