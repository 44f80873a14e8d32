"""The smallest limit of a recorded step, under its own settings and others."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import INACTIVE, Heap, parse
from gpufrag.model.needs import (
    CANDIDATES,
    RECORDED,
    RECORDED_EMPTIED,
    RECORDED_PACKED,
    Better,
    Needs,
    better_setting,
    step_needs,
    step_run,
)
from gpufrag.model.settings import MIB, SEGMENT_GRID
from gpufrag.model.step import StepEvents
from gpufrag.model.trace.whatif import EMPTIED, smallest_limit
from helpers import TESTS
from simulated_trace import Recorder

GIB = 1 << 30


def recorded(name: str) -> dict[str, Any]:
    raw = json.loads(gzip.decompress((TESTS / "fixtures/steps" / f"{name}.json.gz").read_bytes()))
    return raw | {"events": StepEvents(**raw["events"]), "heap": parse(raw["snapshot"])}


@pytest.fixture(scope="module", params=["gpt2-def-0", "gpt2-exp-1", "llama-def-0"])
def step(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Needs]:
    raw = recorded(request.param)
    return raw, step_needs(0, raw["heap"], raw["events"], Driver(None, 141 * GIB, 40 * GIB))


def test_step_needs_at_least_its_true_peak(step: tuple[dict[str, Any], Needs]) -> None:
    raw, needs = step
    anchors = {name for name in needs.smallest_limits if re.fullmatch("anchor:[0-9]+GiB", name)}
    assert len(anchors) == 1
    assert set(needs.smallest_limits) == {RECORDED, RECORDED_PACKED, RECORDED_EMPTIED, *CANDIDATES, *anchors}
    # packing closes the gaps of unsplit blocks, so a limit may lie a little below the active peak
    assert min(needs.smallest_limits.values()) > 0.99 * raw["true_peak"]


def test_smallest_limits_are_whole_driver_units(step: tuple[dict[str, Any], Needs]) -> None:
    assert all(limit % SEGMENT_GRID == 0 for limit in step[1].smallest_limits.values())


def test_margin_is_limit_less_smallest_limit(step: tuple[dict[str, Any], Needs]) -> None:
    assert step[1].margin == 40 * GIB - step[1].smallest_limits[RECORDED]


def pinned_step(pieces: int) -> tuple[Heap, StepEvents]:
    """A step that needs 30 MiB, after `pieces` segments of 40 MiB have each kept a block of 21 MiB."""
    recorder = Recorder()
    for _ in range(pieces):
        wide = recorder.malloc(40 * MIB)
        assert wide is not None
        recorder.free(wide)
        recorder.malloc(21 * MIB)
    begin = len(recorder.trace)
    block = recorder.malloc(30 * MIB)
    assert block is not None
    recorder.free(block)
    return recorder.heap(), columns(recorder, begin)


def columns(recorder: Recorder, begin: int) -> StepEvents:
    rows = [(event.action, event.address or 0, event.size, event.stream) for event in recorder.trace[begin:]]
    return StepEvents(*map(list, zip(*rows)))


def test_recorded_settings_count_fragmentation_of_earlier_steps() -> None:
    limits = step_needs(0, *pinned_step(4), Driver()).smallest_limits
    assert limits[RECORDED] == (4 * 40 + 30) * MIB
    assert limits["default"] == (4 * 22 + 30) * MIB, "packed: each block in a segment of its own size"
    assert limits[RECORDED_PACKED] == limits["default"]


def test_setting_that_only_starts_without_gaps_is_not_better() -> None:
    assert better_setting({RECORDED: 190, RECORDED_PACKED: 118, "default": 118, "other": 117}) is None
    assert better_setting({RECORDED: 190, RECORDED_PACKED: 118, "default": 118, "other": 110}) == Better("other", 8)


def test_better_anchor_has_a_cost() -> None:
    better = better_setting({RECORDED: 190, RECORDED_PACKED: 118, "default": 118, "anchor:7GiB": 110})
    assert better is not None
    assert (better.name, better.saves) == ("anchor:7GiB", 8)
    assert "no other process can use" in better.cost


def test_empty_cache_is_better_only_from_the_same_heap_and_without_a_better_setting() -> None:
    limits = {RECORDED: 120, RECORDED_PACKED: 118, "default": 118, RECORDED_EMPTIED: 112}
    better = better_setting(limits)
    assert better is not None
    assert (better.name, better.saves) == (RECORDED_EMPTIED, 8)
    assert "costs time" in better.cost
    assert better_setting({**limits, RECORDED: 113}) is None
    assert better_setting({**limits, "other": 115}) == Better("other", 3)


def test_segments_cached_before_the_step_count_only_if_the_limit_has_room() -> None:
    heap, events = pinned_step(1)
    cached = heap.segments[0]._replace(address=1 << 50, sizes=(100 * MIB,), requested=(0,), states=(INACTIVE,))
    with_cache = replace(heap, segments=(*heap.segments, cached))
    assert step_needs(0, with_cache, events, Driver()).smallest_limits[RECORDED] == (40 + 30) * MIB


def test_empty_cache_before_the_step_frees_the_segment_that_the_step_would_pin() -> None:
    recorder = Recorder()
    recorder.cache(100 * MIB)
    begin = len(recorder.trace)
    assert recorder.malloc(21 * MIB)
    assert recorder.malloc(110 * MIB)
    limits = step_needs(0, recorder.heap(), columns(recorder, begin), Driver()).smallest_limits
    assert limits[RECORDED] == (100 + 110) * MIB
    assert limits[RECORDED_EMPTIED] == (22 + 110) * MIB


def test_step_that_leaves_no_room_for_its_cache_needs_the_same_after_empty_cache() -> None:
    raw = recorded("llama-def-0")
    run = step_run(raw["heap"], raw["events"], Driver())
    limits = step_needs(0, raw["heap"], raw["events"], Driver()).smallest_limits
    assert limits[RECORDED_EMPTIED] == limits[RECORDED]
    assert limits[RECORDED_EMPTIED] == smallest_limit(run, raw["heap"].settings, start=EMPTIED)


def test_small_step_has_no_anchor() -> None:
    assert not [name for name in step_needs(0, *pinned_step(1), Driver()).smallest_limits if "anchor" in name]


def test_margin_without_a_limit_is_unknown() -> None:
    assert Needs(0, None, {RECORDED: 5}).margin is None


def test_events_of_another_heap_are_refused() -> None:
    raw = recorded("gpt2-def-0")
    other = recorded("llama-def-0")
    with pytest.raises(BadInput, match="do not fit"):
        step_needs(0, other["heap"], raw["events"], Driver(None, 141 * GIB, None))
