"""The simulator against the real allocator: every recorded case, step by step and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import INACTIVE, Heap
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import GROWS, SHRINKS, Event, parse_rows
from gpufrag.model.trace.program import Replay
from gpufrag.model.trace.reading import read_program
from helpers import GOLDEN_NAMES, GoldenCase, golden_case_named

LIBRARIES_IN_BETWEEN = ("train-cap4", "train-cap4-maxsplit64", "train-default")
"""Cases whose address space has holes that cuBLAS and others made: there the recorded addresses must be given."""


@dataclass(frozen=True)
class Run:
    recorded: list[Event]
    simulated: list[Event]
    allocator: Allocator


@cache
def run(name: str, with_addresses: bool = True) -> Run:
    case = golden_case_named(name)
    raw, settings, limit = case.raw, case.heap.settings, case.raw["cap_bytes"] or None
    events = parse_rows(raw["events"], raw["events_columns"])
    driver = Driver(raw["driver_free_before"], raw["driver_total"], limit)
    segments = [(e.address or 0, e.size) for e in events if e.action == "segment_alloc"]
    simulated: list[Event] = []
    allocator = Allocator(settings, driver, AddressSpace(segments if with_addresses else ()), simulated.append)
    Replay(read_program(events, settings, limit), allocator).run()
    recorded = [event for event in events if event.action in GROWS | SHRINKS]
    return Run(recorded, simulated, allocator)


def shape(heap: Heap) -> list[tuple[Any, ...]]:
    """All of a heap but addresses, and the requested sizes of free blocks, which torch leaves stale."""
    return sorted(
        (
            segment.stream,
            segment.small,
            segment.pool,
            segment.expandable,
            segment.sizes,
            segment.states,
            tuple(asked for asked, state in zip(segment.requested, segment.states) if state != INACTIVE),
        )
        for segment in heap.segments
    )


def without_addresses(events: list[Event]) -> list[tuple[str, int, int]]:
    return [(event.action, event.size, event.stream) for event in events]


def test_every_segment_comes_and_goes_as_recorded(golden_case: GoldenCase) -> None:
    result = run(golden_case.name)
    assert without_addresses(result.simulated) == without_addresses(result.recorded)


def test_the_heap_ends_block_for_block_as_recorded(golden_case: GoldenCase) -> None:
    assert shape(run(golden_case.name).allocator.heap()) == shape(golden_case.heap)


def test_plain_segments_end_at_their_recorded_addresses(golden_case: GoldenCase) -> None:
    simulated = run(golden_case.name).allocator.heap()
    plain = [
        [(s.address, s.sizes) for s in heap.segments if not s.expandable] for heap in (simulated, golden_case.heap)
    ]
    assert plain[0] == plain[1]


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name not in LIBRARIES_IN_BETWEEN])
def test_addresses_need_not_be_known(name: str) -> None:
    """The driver's way with addresses is followed well enough to break all ties as the real run did."""
    result = run(name, with_addresses=False)
    assert without_addresses(result.simulated) == without_addresses(result.recorded)
    assert shape(result.allocator.heap()) == shape(golden_case_named(name).heap)


def test_the_counters_are_torch_s(golden_case: GoldenCase) -> None:
    counters, stats = run(golden_case.name).allocator.counters, golden_case.raw["stats"]
    found = (counters.alloc_retries, counters.ooms, counters.device_allocs, counters.device_frees)
    names = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")
    assert found == tuple(stats[name] for name in names)
    assert counters.stream_syncs == stats["num_sync_all_streams"]


def test_the_peaks_are_torch_s(golden_case: GoldenCase) -> None:
    allocator, stats = run(golden_case.name).allocator, golden_case.raw["stats"]
    assert allocator.peak_reserved == stats["reserved_bytes.all.peak"]
    assert allocator.peak_active == stats["active_bytes.all.peak"]


@pytest.mark.parametrize("pool", ["small", "large"])
def test_the_totals_of_each_pool_are_torch_s(golden_case: GoldenCase, pool: str) -> None:
    totals, stats = run(golden_case.name).allocator.totals(small=pool == "small"), golden_case.raw["stats"]
    assert totals._asdict() == {name: stats[f"{name}_bytes.{pool}_pool.current"] for name in totals._fields}


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
    case, target = golden_case_named(recorded), golden_case_named(other)
    events = parse_rows(case.raw["events"], case.raw["events_columns"])
    driver = Driver(target.raw["driver_free_before"], target.raw["driver_total"], target.raw["cap_bytes"] or None)
    allocator = Allocator(target.heap.settings, driver)
    Replay(read_program(events, case.heap.settings, case.raw["cap_bytes"] or None), allocator).run()
    stats = target.raw["stats"]
    assert allocator.peak_reserved == stats["reserved_bytes.all.peak"]
    assert allocator.counters.device_allocs == stats["num_device_alloc"]
    assert streamless(allocator.heap()) == streamless(target.heap)


def streamless(heap: Heap) -> list[tuple[Any, ...]]:
    """The shape without the streams, whose numbers differ from process to process."""
    return sorted(segment[1:] for segment in shape(heap))
