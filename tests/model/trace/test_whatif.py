"""Replays of a recorded run under other settings, compared with recordings under those settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import parse
from gpufrag.model.settings import MIB, SEGMENT_GRID, parse_conf
from gpufrag.model.trace.events import parse_rows
from gpufrag.model.trace.program import Replay
from gpufrag.model.trace.whatif import (
    EMPTIED,
    OWN_HEAP,
    PACKED,
    Outcome,
    Run,
    Start,
    best_anchor,
    in_effect,
    on_any_device,
    play,
    possible_anchors,
    read_run,
    smallest_limit,
)
from gpufrag.model.trace.whatif import begin as begin_replay
from helpers import GOLDEN_NAMES, golden_case_named
from simulated_trace import Recorder

PAIRS = [
    (name, other)
    for name in ("churn-default", "kv-default", "streams-default", "train-cap4", "train-default")
    for other in GOLDEN_NAMES
    if other != name and golden_case_named(other).raw["workload"] == golden_case_named(name).raw["workload"]
    and golden_case_named(other).raw["seed"] == golden_case_named(name).raw["seed"]
    and golden_case_named(other).raw["cap_bytes"] == golden_case_named(name).raw["cap_bytes"]
]  # fmt: skip


@cache
def recorded(name: str) -> Run:
    raw = golden_case_named(name).raw
    driver = Driver(raw["driver_free_before"], raw["driver_total"])
    events = parse_rows(raw["events"], raw["events_columns"])
    return read_run(events, golden_case_named(name).heap, driver, raw["cap_bytes"] or None)


def real_peak(name: str) -> int:
    return golden_case_named(name).raw["stats"]["reserved_bytes.all.peak"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_recorded_setting_gives_the_recorded_run(name: str) -> None:
    run, stats = recorded(name), golden_case_named(name).raw["stats"]
    outcome = play(run, run.end.settings, run.recorded_limit)
    assert outcome.same_end
    assert outcome.peak_reserved == stats["reserved_bytes.all.peak"]
    assert outcome.peak_active == stats["active_bytes.all.peak"]
    assert outcome.ooms == stats["num_ooms"]
    assert outcome.failed == 0


@pytest.mark.parametrize(("name", "other"), PAIRS)
def test_peak_under_another_setting_is_predicted(name: str, other: str) -> None:
    """Exact except for churn, which survives errors at different places under each setting."""
    run, case = recorded(name), golden_case_named(other)
    outcome = play(run, case.heap.settings, run.recorded_limit)
    assert outcome.peak_reserved == pytest.approx(real_peak(other), rel=0.02 if "churn" in name else 0)


@pytest.mark.parametrize(
    ("conf", "limit", "search", "changes"),
    [
        ("max_split_size_mb:4096", None, True, False),
        ("max_split_size_mb:64", None, False, True),
        ("garbage_collection_threshold:0.5", None, False, False),
        ("garbage_collection_threshold:0.5", None, True, True),
        ("garbage_collection_threshold:0.5", 4 << 30, False, True),
    ],
)
def test_option_without_effect_is_left_out(conf: str, limit: int | None, search: bool, changes: bool) -> None:
    run, settings = recorded("train-default"), parse_conf(conf)
    reduced = in_effect(run, settings, limit, search)
    assert (reduced == settings) == changes
    assert play(run, settings, limit) == play(run, reduced, limit)


def second_half(name: str) -> Run:
    case = golden_case_named(name)
    events = parse_rows(case.raw["events"], case.raw["events_columns"])
    return read_run(events[len(events) // 2 :], case.heap, Driver(), case.raw["cap_bytes"] or None)


def test_late_trace_counts_older_blocks() -> None:
    run = second_half("churn-default")
    assert run.older > 100
    assert not run.complete
    outcome = play(run, parse_conf("expandable_segments:True"), run.recorded_limit)
    assert 0 < outcome.peak_active <= outcome.peak_reserved <= (run.recorded_limit or 0)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "garbage_collection_threshold:0.6"])
def test_smallest_limit_suffices_and_less_fails(conf: str) -> None:
    run, settings = recorded("train-cap4"), parse_conf(conf)
    limit = smallest_limit(run, settings)
    assert limit is not None
    assert play(run, settings, limit).failed == 0
    assert play(run, settings, limit - (2 << 20)).failed > 0


@given(st.data())
def test_smallest_limit_of_random_step_from_its_own_heap(data: st.DataObject) -> None:
    """Some limits are judged without a replay: that must not change a result."""
    conf = data.draw(st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:32"]))
    recorder, live = Recorder(parse_conf(conf)), []
    sizes = st.lists(st.integers(1, 60 << 20), min_size=1, max_size=8)
    for _step in range(2):
        begin = len(recorder.trace)
        for size in data.draw(sizes):
            live.append(recorder.malloc(size))
            if data.draw(st.booleans()):
                recorder.free(live.pop(data.draw(st.integers(0, len(live) - 1))))
    run = read_run(recorder.trace[begin:], recorder.heap(), Driver())
    limit = smallest_limit(run, run.end.settings, start=OWN_HEAP)
    assert limit is not None

    def suffices(limit: int) -> bool:
        replay = begin_replay(run, run.end.settings, limit)
        if replay.allocator.reserved > limit:
            replay.allocator.empty_cache()
        reserved = replay.allocator.reserved
        replay.run()
        return reserved <= limit and not replay.failed

    assert suffices(limit)
    assert not suffices(limit - (2 << 20))


def test_smallest_limit_on_a_small_device_is_none() -> None:
    run = replace(recorded("train-cap4"), driver=Driver(free=1 << 30))
    assert smallest_limit(run, run.end.settings) is None


def test_late_trace_needs_its_older_blocks() -> None:
    """What was cached before it began would serve its requests under any limit."""
    run = second_half("kv-default")
    limit = smallest_limit(run, run.end.settings)
    assert limit is not None
    assert limit >= play(run, run.end.settings, None).peak_active


def test_late_trace_starts_all_settings_alike() -> None:
    """The recorded setting, played as any other would be, does not have what was cached before the trace."""
    run = second_half("kv-default")
    stranger = replace(run, end=replace(run.end, settings=parse_conf("expandable_segments:True")))
    as_other = play(stranger, run.end.settings, None)
    assert play(run, run.end.settings, None, start=PACKED).peak_reserved == as_other.peak_reserved
    assert play(run, run.end.settings, None).peak_reserved > as_other.peak_reserved


def anchored(conf: str, size: int, limit: int | None = None) -> Replay:
    """A run that takes 30 MiB at once, at its start with an anchor."""
    recorder = Recorder()
    block = recorder.malloc(30 * MIB)
    assert block is not None
    recorder.free(block)
    run = read_run(recorder.trace, recorder.heap(), Driver())
    return begin_replay(run, parse_conf(conf), limit, Start(anchor=size))


def test_anchor_is_one_free_segment_that_serves_the_run() -> None:
    replay = anchored("", 100 * MIB)
    assert [segment.sizes for segment in replay.allocator.heap().segments] == [(100 * MIB,)]
    assert replay.allocator.active == 0
    replay.run()
    assert (replay.allocator.reserved, replay.allocator.counters.device_allocs) == (100 * MIB, 1)


@pytest.mark.parametrize(
    ("conf", "size", "limit"),
    [
        ("", 100 * MIB, 98 * MIB),
        ("", 18 * MIB, None),
        ("roundup_power2_divisions:2", 130 * MIB, 140 * MIB),
        ("expandable_segments:True", 100 * MIB, None),
        ("max_split_size_mb:64", 100 * MIB, None),
    ],
    ids=["above the limit", "too small", "rounded above the limit", "expandable", "max_split_size"],
)
def test_anchor_that_the_agent_refuses_is_not_reserved(conf: str, size: int, limit: int | None) -> None:
    replay = anchored(conf, size, limit)
    assert (replay.allocator.reserved, replay.failed) == (0, 0)


def test_unused_anchor_is_released_for_a_larger_request() -> None:
    replay = anchored("", 28 * MIB, 40 * MIB)
    assert replay.allocator.reserved == 28 * MIB
    replay.run()
    assert (replay.failed, replay.allocator.reserved, replay.allocator.counters.alloc_retries) == (0, 30 * MIB, 1)


@pytest.mark.parametrize("name", ["train-cap4", "churn-small-default"])
def test_best_anchor_needs_the_least_of_the_tried_ones(name: str) -> None:
    run = on_any_device(recorded(name))
    settings = run.end.settings
    sizes = possible_anchors(run, settings)
    limits = {size: smallest_limit(run, settings, start=Start(anchor=size)) for size in sizes}
    best = best_anchor(run, settings)
    assert best is not None
    assert len(sizes) > 1
    assert best.smallest_limit == limits[best.size] == min(limit for limit in limits.values() if limit is not None)


def test_smallest_limit_is_searched_only_below_another() -> None:
    run = recorded("train-cap4")
    limit = smallest_limit(run, run.end.settings)
    assert limit is not None
    assert smallest_limit(run, run.end.settings, below=limit + SEGMENT_GRID) == limit
    assert smallest_limit(run, run.end.settings, below=limit) is None


def test_peaks_after_empty_cache_leave_out_the_cache() -> None:
    recorder = Recorder()
    recorder.cache(100 * MIB)
    begin = len(recorder.trace)
    recorder.malloc(30 * MIB)
    run = read_run(recorder.trace[begin:], recorder.heap(), Driver())
    peaks = {start: play(run, run.end.settings, None, start=start).peak_reserved for start in (OWN_HEAP, EMPTIED)}
    assert peaks == {OWN_HEAP: 100 * MIB, EMPTIED: 30 * MIB}


def test_empty_trace_is_an_empty_run() -> None:
    run = read_run([], parse({"segments": []}), Driver())
    assert play(run, run.end.settings, None) == Outcome(0, 0, 0, 0, 0, 0, 0, None, True)
