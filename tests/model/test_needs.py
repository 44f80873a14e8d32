"""The smallest limit of a recorded step, under its own settings and others."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import INACTIVE, Heap, parse
from gpufrag.model.needs import CANDIDATES, RECORDED, RECORDED_PACKED, Needs, better_setting, step_needs
from gpufrag.model.settings import MIB, SEGMENT_GRID
from gpufrag.model.step import StepEvents
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
    assert set(needs.smallest_limits) == {RECORDED, RECORDED_PACKED, *CANDIDATES}
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
    rows = [(event.action, event.address or 0, event.size, event.stream) for event in recorder.trace[begin:]]
    return recorder.heap(), StepEvents(*map(list, zip(*rows)))


def test_recorded_settings_count_fragmentation_of_earlier_steps() -> None:
    limits = step_needs(0, *pinned_step(4), Driver()).smallest_limits
    assert limits[RECORDED] == (4 * 40 + 30) * MIB
    assert limits["default"] == (4 * 22 + 30) * MIB, "packed: each block in a segment of its own size"
    assert limits[RECORDED_PACKED] == limits["default"]


def test_setting_that_only_starts_without_gaps_is_not_better() -> None:
    assert better_setting({RECORDED: 190, RECORDED_PACKED: 118, "default": 118, "other": 117}) is None
    assert better_setting({RECORDED: 190, RECORDED_PACKED: 118, "default": 118, "other": 110}) == "other"


def test_segments_cached_before_the_step_count_only_if_the_limit_has_room() -> None:
    heap, events = pinned_step(1)
    cached = heap.segments[0]._replace(address=1 << 50, sizes=(100 * MIB,), requested=(0,), states=(INACTIVE,))
    with_cache = replace(heap, segments=(*heap.segments, cached))
    assert step_needs(0, with_cache, events, Driver()).smallest_limits[RECORDED] == (40 + 30) * MIB


def test_margin_without_a_limit_is_unknown() -> None:
    assert Needs(0, None, {RECORDED: 5}).margin is None


def test_events_of_another_heap_are_refused() -> None:
    raw = recorded("gpt2-def-0")
    other = recorded("llama-def-0")
    with pytest.raises(BadInput, match="do not fit"):
        step_needs(0, other["heap"], raw["events"], Driver(None, 141 * GIB, None))
