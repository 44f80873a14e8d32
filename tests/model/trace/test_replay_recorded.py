"""The simulator against the real allocator: workloads (tests/golden), and random programs for rarer rules."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import DEFAULT_POOL, INACTIVE, Heap
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import EMPTY_CACHE, GROWS, RETRY, SHRINKS, Event
from gpufrag.model.trace.program import Replay
from gpufrag.model.trace.reading import places, read_program
from gpufrag.model.trace.whatif import play, read_run, shape
from helpers import GOLDEN_NAMES, TESTS, GoldenCase, golden_case_named

DIFFERENTIAL = TESTS / "fixtures" / "differential"
RANDOM_NAMES = tuple(sorted(path.name.removesuffix(".json.gz") for path in DIFFERENTIAL.glob("*.json.gz")))
NAMES = (*GOLDEN_NAMES, *RANDOM_NAMES)
TIMING = {"differential-13": 103, "differential-65": 613}
"""Recordings whose retries depend on when the GPU was done, and the first event of a call where they may differ."""
LIBRARIES_IN_BETWEEN = ("train-cap4", "train-cap4-maxsplit64", "train-default")
"""Cases whose address space has holes that cuBLAS and others made: there the recorded addresses must be given."""

each = pytest.mark.parametrize("name", NAMES)


@dataclass(frozen=True)
class Case:
    raw: dict[str, Any]
    heap: Heap
    events: list[Event]
    driver: Driver


@cache
def case(name: str) -> Case:
    if name in GOLDEN_NAMES:
        golden = golden_case_named(name)
    else:
        with gzip.open(DIFFERENTIAL / f"{name}.json.gz", "rt", encoding="utf-8") as file:
            golden = GoldenCase(name, json.load(file))
    raw = golden.raw
    driver = Driver(raw["driver_free_before"], raw["driver_total"], raw["cap_bytes"] or None)
    return Case(raw, golden.heap, golden.events, driver)


@dataclass(frozen=True)
class Run:
    simulated: list[Event]
    allocator: Allocator
    inferred: int


def run(name: str, events: Sequence[Event] | None = None, addresses: bool = True) -> Run:
    recorded = case(name)
    events = recorded.events if events is None else events
    simulated: list[Event] = []

    def allocator(observed: list[Event]) -> Allocator:
        space = AddressSpace(places(events) if addresses else ())
        return Allocator(recorded.heap.settings, recorded.driver, space, observed.append)

    program = read_program(events, allocator=allocator([]))
    replay = Replay(program, allocator(simulated))
    replay.run()
    return Run(simulated, replay.allocator, program.inferred)


run_once = cache(run)


def segments_of(events: Sequence[Event]) -> list[tuple[str, int, int]]:
    return [(event.action, event.size, event.stream) for event in events if event.action in GROWS | SHRINKS]


def exact_shape(heap: Heap) -> list[tuple[Any, ...]]:
    """All of a heap but addresses, and the requested sizes of free blocks, which torch leaves stale."""
    return sorted(
        (s.stream, s.small, s.pool, s.expandable, s.sizes, s.states,
         tuple(asked for asked, state in zip(s.requested, s.states) if state != INACTIVE))
        for s in heap.segments
    )  # fmt: skip


def shape_of(name: str, heap: Heap) -> list[tuple[Any, ...]]:
    """Private pools have no numbers in the random programs."""
    if name in GOLDEN_NAMES:
        return exact_shape(heap)
    return sorted((small, pool != DEFAULT_POOL, *rest) for small, pool, *rest in shape(heap))


@each
def test_segments_change_as_recorded(name: str) -> None:
    assert segments_of(run_once(name).simulated) == segments_of(case(name).events)


@each
def test_heap_ends_as_recorded(name: str) -> None:
    assert shape_of(name, run_once(name).allocator.heap()) == shape_of(name, case(name).heap)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_plain_segments_end_at_recorded_addresses(name: str) -> None:
    heaps = run_once(name).allocator.heap(), case(name).heap
    first, second = ([(s.address, s.sizes) for s in heap.segments if not s.expandable] for heap in heaps)
    assert first == second


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name not in LIBRARIES_IN_BETWEEN])
def test_addresses_are_not_needed(name: str) -> None:
    """The simulated driver chooses addresses well enough to break all ties as the real run did."""
    result = run(name, addresses=False)
    assert segments_of(result.simulated) == segments_of(case(name).events)
    assert exact_shape(result.allocator.heap()) == exact_shape(case(name).heap)


@each
def test_counters_and_peaks_equal_torchs(name: str) -> None:
    allocator, stats = run_once(name).allocator, case(name).raw["stats"]
    counters = allocator.counters
    assert (counters.ooms, counters.device_allocs, counters.device_frees) == tuple(
        stats[key] for key in ("num_ooms", "num_device_alloc", "num_device_free")
    )
    assert allocator.peak_reserved == stats["reserved_bytes.all.peak"]
    assert allocator.peak_active == stats["active_bytes.all.peak"]
    if name not in TIMING:
        assert counters.alloc_retries == stats["num_alloc_retries"]
    if name in GOLDEN_NAMES:
        assert counters.stream_syncs == stats["num_sync_all_streams"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
@pytest.mark.parametrize("pool", ["small", "large"])
def test_totals_of_each_pool_equal_torchs(name: str, pool: str) -> None:
    totals, stats = run_once(name).allocator.totals(small=pool == "small"), case(name).raw["stats"]
    assert totals._asdict() == {name: stats[f"{name}_bytes.{pool}_pool.current"] for name in totals._fields}


@pytest.mark.parametrize(("name", "begin"), TIMING.items())
def test_collection_and_flush_can_leave_one_trace(name: str, begin: int) -> None:
    """A block that goes was complete when the request began, or not before its flush: both fit what was recorded."""
    events = case(name).events
    flushed = run(name, [*events[:begin], Event(RETRY, None, 0, 0), *events[begin:]])
    collected = run_once(name)
    assert flushed.simulated == collected.simulated
    assert flushed.allocator.heap() == collected.allocator.heap()
    assert flushed.allocator.counters.alloc_retries == collected.allocator.counters.alloc_retries + 1


@pytest.mark.parametrize("name", [name for name in RANDOM_NAMES if name.startswith("differential")])
def test_trace_without_marks_ends_as_recorded(name: str) -> None:
    """And with the same retries, but for the flushes that had to be inferred."""
    found = run(name, [event for event in case(name).events if event.action != EMPTY_CACHE])
    retries = case(name).raw["stats"]["num_alloc_retries"]
    assert segments_of(found.simulated) == segments_of(case(name).events)
    assert shape_of(name, found.allocator.heap()) == shape_of(name, case(name).heap)
    assert abs(found.allocator.counters.alloc_retries - retries) <= found.inferred


@pytest.mark.parametrize("name", RANDOM_NAMES)
def test_users_replay_has_the_recorded_peak(name: str) -> None:
    recorded = case(name)
    user = read_run(recorded.events, recorded.heap, recorded.driver, recorded.driver.limit)
    outcome = play(user, recorded.heap.settings, recorded.driver.limit)
    assert outcome.peak_reserved == recorded.raw["stats"]["reserved_bytes.all.peak"]
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("recorded", "other"),
    [
        ("kv-default", "kv-expandable"),
        ("kv-default", "kv-maxsplit64"),
        ("kv-expandable", "kv-default"),
        ("streams-default", "streams-expandable"),
        ("streams-expandable", "streams-default"),
        ("train-default", "train-expandable"),
        ("train-cap4-maxsplit64", "train-cap4-expandable"),
    ],
)
def test_recorded_run_predicts_another_setting(recorded: str, other: str) -> None:
    """The workload was recorded under both: the replay of one ends, block for block, like the other."""
    source, target = case(recorded), case(other)
    allocator = Allocator(target.heap.settings, target.driver)
    Replay(read_program(source.events, source.heap.settings, source.driver.limit), allocator).run()
    stats = target.raw["stats"]
    assert allocator.peak_reserved == stats["reserved_bytes.all.peak"]
    assert allocator.counters.device_allocs == stats["num_device_alloc"]
    assert streamless(allocator.heap()) == streamless(target.heap)


def streamless(heap: Heap) -> list[tuple[Any, ...]]:
    """Streams are handles, which differ from run to run."""
    return sorted(row[1:] for row in exact_shape(heap))
