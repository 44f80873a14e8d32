"""Heaps and call sites over a trace."""

from __future__ import annotations

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import INACTIVE, Heap
from gpufrag.model.trace.columns import Trace
from gpufrag.model.trace.history import heaps_at, rewind
from gpufrag.snapshot_file.profile import read_profiles
from helpers import GoldenCase
from staged_programs import MIB, Process, growing_cache, keeps_losses, run


def shape(heap: Heap) -> list[tuple[int, tuple[int, ...], list[bool]]]:
    return [(s.address, tuple(s.sizes), [state is INACTIVE for state in s.states]) for s in heap.segments]


def test_heaps_at_both_ends_are_those_of_the_trace(golden_case: GoldenCase) -> None:
    events = golden_case.events
    middle = len(events) // 2
    heaps = heaps_at(Trace(events), golden_case.heap, [0, middle, len(events)])
    assert heaps[0].segments == ()
    assert shape(heaps[len(events)]) == shape(golden_case.heap)
    assert shape(heaps[middle]) == shape(rewind(events[middle:], golden_case.heap).heap)


def test_profile_has_the_recorded_peak(golden_case: GoldenCase) -> None:
    ((profile, events, _),) = read_profiles(golden_case.raw, {})
    assert profile.peak_reserved == golden_case.raw["stats"]["reserved_bytes.all.peak"]
    assert profile.peak.active <= golden_case.raw["stats"]["active_bytes.all.peak"]
    assert profile.moments[-1].events == len(events)
    last = profile.moments[-1].found
    assert last.largest_allocatable == measure(golden_case.heap, golden_case.driver).largest_allocatable


def test_moments_have_times_and_room() -> None:
    ((profile, events, _),) = read_profiles(run(growing_cache), {"free": 1 << 30, "size": 8 << 30})
    times = [moment.time for moment in profile.moments]
    assert times == sorted(times, key=lambda time: time or 0)
    assert times[-1] == pytest.approx(1e-5 * (len(events) - 1))
    for moment in profile.moments:
        assert moment.reservable == (moment.found.headroom or 0) + moment.found.reclaimable
    end = profile.moments[-1]
    assert profile.worst.found.ratio == max(moment.found.ratio or 0 for moment in profile.moments)
    assert end.found.headroom == 1 << 30


def test_call_sites_are_those_of_live_blocks() -> None:
    process = Process()
    first = process.malloc(30 * MIB, 1)
    process.malloc(30 * MIB, 2)
    process.free(first)
    process.malloc(30 * MIB, 3)  # takes the address of the first
    ((profile, _, _),) = read_profiles(process.snapshot(), {})
    live = {stack[0] for stack in profile.sites.values()}
    assert live <= {"/job/train.py:2 step", "/job/train.py:3 step", "/job/train.py:1 step"}
    assert profile.stats[("/job/train.py:1 step",)].kept == 0
    assert profile.stats[("/job/train.py:3 step",)].kept == 1


def test_kept_blocks_are_counted_by_call_site() -> None:
    ((profile, _, _),) = read_profiles(run(keeps_losses), {})
    kept = profile.stats[("/job/train.py:40 step",)]
    assert (kept.count, kept.kept, kept.kept_size) == (50, 50, 150 * MIB)
    assert len(kept.kept_stretches) == 10


def test_empty_cache_calls_and_their_bytes_are_counted() -> None:
    process = Process()
    for _ in range(3):
        process.free(process.malloc(64 * MIB, 1), process.malloc(30 * MIB, 1))
        process.empty_cache()
    ((profile, _, _),) = read_profiles(process.snapshot(), {})
    assert (profile.empty_caches, profile.emptied) == (3, 3 * 94 * MIB)


def test_snapshot_without_history_is_one_moment() -> None:
    snapshot = run(growing_cache)
    del snapshot["device_traces"]
    ((profile, events, _),) = read_profiles(snapshot, {"limit": 1 << 30})
    assert (len(profile.moments), profile.events, len(events), Driver(limit=1 << 30)) == (1, 0, 0, profile.driver)
    assert ("/job/train.py:20 step",) in profile.sites.values()
