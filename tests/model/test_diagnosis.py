"""Fine, tune or act; and the rules, each on a program that has the fault and one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.diagnosis import RULES, Health, assess, assess_profile, findings, where
from gpufrag.model.fragmentation import Fragmentation, Pool, measure
from gpufrag.model.heap import parse
from gpufrag.model.trace.profile import Moment, Profile, profile_heap
from gpufrag.snapshot_file.profile import read_profiles
from helpers import GoldenCase
from staged_programs import PROGRAMS, Program, growing_cache, healthy, run
from strategies import INACTIVE, LIVE, MIB, segment

GIB = 1 << 30
POOL = Pool(reserved=10 * GIB, free_cached=0, reclaimable=0)
DEVICE = Fragmentation(0, 0, POOL, Pool(), 0, 0, 80 * GIB, 40 * GIB, 40 * GIB, 39 * GIB)
UNKNOWN = {"limit": None, "headroom": None, "free_total": None, "largest_allocatable": None}


@pytest.mark.parametrize(
    ("largest", "free", "health"),
    [
        (40, 40, Health.FINE),
        (20, 40, Health.FINE),
        (19, 40, Health.TUNE),
        (10, 40, Health.TUNE),
        (9, 40, Health.ACT),
        (0, 40, Health.ACT),
        (1, 4, Health.TUNE),
        (1, 5, Health.ACT),
    ],
)
def test_ratio_and_free_share_decide(largest: int, free: int, health: Health) -> None:
    found = replace(DEVICE, largest_allocatable=largest * GIB, free_total=free * GIB)
    assert assess(found).health is health


@pytest.mark.parametrize(
    ("stranded", "health"), [(2, Health.FINE), (3, Health.TUNE), (4, Health.TUNE), (5, Health.ACT)]
)
def test_stranded_share_decides_without_driver(stranded: int, health: Health) -> None:
    found = replace(DEVICE, large=replace(POOL, free_cached=stranded * GIB), **UNKNOWN)
    assert assess(found).health is health
    assert "unknown without the driver's figures" in assess(found).reason


def test_empty_heap_without_driver_is_fine() -> None:
    assert assess(replace(DEVICE, large=Pool(), **UNKNOWN)).health is Health.FINE


def test_recorded_verdict_is_fine_or_has_a_finding(golden_case: GoldenCase) -> None:
    for driver in ({}, {"free": 1 << 30, "size": 143 << 30}):
        ((profile, *_),) = read_profiles(golden_case.raw, driver)
        assert assess_profile(profile).health is Health.FINE or findings(profile)


def test_recorded_heap_has_an_assessment(golden_case: GoldenCase) -> None:
    found = measure(golden_case.heap, golden_case.driver)
    assert f"{found.ratio:.2f}" in assess(found).reason


@pytest.mark.parametrize(
    ("active", "ratio", "health", "words"),
    [
        (9, 39, Health.FINE, "peak reserved 10.0 GiB for 9.00 GiB active"),
        (7, 39, Health.TUNE, "(30% unused)"),
        (5, 39, Health.ACT, "(50% unused)"),
        (9, 5, Health.ACT, "ratio 8.00"),
        (5, 5, Health.ACT, "peak reserved"),
        (9, 15, Health.TUNE, "ratio 2.67"),
    ],
)
def test_worse_of_ratio_and_unused_share_decides(active: int, ratio: int, health: Health, words: str) -> None:
    pool = replace(POOL, active=active * GIB)
    moment = Moment(5, None, replace(DEVICE, large=pool, largest_allocatable=ratio * GIB))
    profile = replace(profile_of([]), moments=[moment], peak=moment, worst=moment, peak_reserved=10 * GIB, events=9)
    found = assess_profile(profile)
    assert found.health is health
    assert words in found.reason


def profile_of(segments: list[dict[str, Any]], driver: Driver = Driver(), **settings: Any) -> Profile:
    return profile_heap(parse({"segments": segments, "allocator_settings": settings}), driver, {})


def profile_program(program: Program) -> Profile:
    ((profile, _, _),) = read_profiles(run(program), {})
    return profile


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_with_fault_has_its_finding(name: str) -> None:
    found = {finding.name: finding for finding in findings(profile_program(PROGRAMS[name]))}
    assert name in found
    assert found[name].evidence
    assert found[name].change


def test_healthy_program_has_no_finding() -> None:
    profile = profile_program(healthy)
    assert findings(profile) == []
    assert assess_profile(profile).health is Health.FINE


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("dynamic_shapes", "/job/train.py:30 in step"),
        ("late_optimizer_state", "/job/train.py:60 in step"),
        ("kept_across_steps", "/job/train.py:40 in step"),
        ("large_temporary", "/job/train.py:50 in step"),
        ("small_allocations", "/job/train.py:70 in step"),
    ],
)
def test_finding_names_the_line(name: str, line: str) -> None:
    (found,) = [finding for finding in findings(profile_program(PROGRAMS[name])) if finding.name == name]
    assert line in found.evidence


def test_growing_cache_is_kept_across_steps() -> None:
    names = [finding.name for finding in findings(profile_program(growing_cache))]
    assert "kept_across_steps" in names


FREE_64 = [(64 * MIB, INACTIVE), (2 * MIB, LIVE)]
HEAPS: dict[str, tuple[Profile, Profile]] = {
    "private_pools": (
        profile_of([segment(0, FREE_64, segment_pool_id=(0, 1))]),
        profile_of([segment(0, [(63 * MIB, INACTIVE), (2 * MIB, LIVE)], segment_pool_id=(0, 1))]),
    ),
    "other_streams": (
        profile_of([segment(0, FREE_64, stream=7), segment(1 << 30, [(300 * MIB, LIVE)])]),
        profile_of([segment(0, FREE_64), segment(1 << 30, [(300 * MIB, LIVE)])]),
    ),
    "oversize_blocks": (
        profile_of([segment(0, FREE_64)], max_split_size=64 * MIB),
        profile_of([segment(0, FREE_64)], max_split_size=65 * MIB),
    ),
    "outside_the_allocator": (
        profile_of([segment(0, FREE_64)], Driver(free=70 * GIB, size=80 * GIB)),
        profile_of([segment(0, FREE_64)], Driver(free=77 * GIB, size=80 * GIB)),
    ),
    "shared_device": (
        replace(profile_of([segment(0, FREE_64)], Driver(free=70 * GIB, size=80 * GIB)), others=2 * GIB),
        replace(profile_of([segment(0, FREE_64)], Driver(free=70 * GIB, size=80 * GIB)), others=1 * GIB),
    ),
    "pinned_memory": (
        profile_of([segment(0, [(30 * MIB, LIVE), (30 * MIB, INACTIVE), (30 * MIB, LIVE)])]),
        profile_of([segment(0, [(90 * MIB, LIVE), (20 * MIB, INACTIVE), (30 * MIB, LIVE)])]),
    ),
    "nearly_full": (
        profile_of([segment(0, [(90 * MIB, LIVE)])], Driver(free=4 * MIB, limit=96 * MIB)),
        profile_of([segment(0, [(90 * MIB, LIVE)])], Driver(free=40 * MIB, limit=126 * MIB)),
    ),
    "limit_below_device": (
        profile_of([segment(0, FREE_64)], Driver(limit=70 * GIB, size=80 * GIB)),
        profile_of([segment(0, FREE_64)], Driver(limit=76 * GIB, size=80 * GIB)),
    ),
}


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6), max_size=5),
    st.none() | st.integers(0, 4 * GIB),
    st.none() | st.integers(1, 8 * GIB),
    st.booleans(),
)
def test_verdict_that_is_not_fine_has_a_finding(
    segments: list[list[tuple[int, bool]]], free: int | None, limit: int | None, expandable: bool
) -> None:
    blocks = [[(size * 2 * MIB, LIVE if live else INACTIVE) for size, live in row] for row in segments]
    rows = [segment(index * GIB, row) for index, row in enumerate(blocks)]
    profile = profile_of(rows, Driver(free=free, limit=limit), expandable_segments=expandable)
    if assess_profile(profile).health is not Health.FINE:
        assert findings(profile)


@pytest.mark.parametrize("name", HEAPS)
def test_rule_on_heap_fires_only_on_its_fault(name: str) -> None:
    fault, none = HEAPS[name]
    assert name in [finding.name for finding in findings(fault)]
    assert name not in [finding.name for finding in findings(none)]


def test_known_other_processes_are_not_outside_the_allocator() -> None:
    fault, _ = HEAPS["outside_the_allocator"]
    names = [finding.name for finding in findings(replace(fault, others=9 * GIB))]
    assert "outside_the_allocator" not in names
    assert "shared_device" in names


def test_every_rule_has_a_case() -> None:
    assert len(RULES) + 1 == len(PROGRAMS) + len(HEAPS)  # one rule has two findings


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        ((), "code without a recorded Python stack"),
        (("train.py:8 step",), "train.py:8 in step"),
        (("a.py:8 f", "b.py:9 g", "c.py:1 h"), "a.py:8 in f, called at b.py:9 in g"),
        (("<ipython-input-3>:2 <module>",), "<ipython-input-3>:2 in <module>"),
    ],
)
def test_call_site_is_named_by_its_innermost_frames(stack: tuple[str, ...], text: str) -> None:
    assert where(stack) == text
