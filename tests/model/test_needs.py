"""The smallest limit of a recorded step, under its own settings and others."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import parse
from gpufrag.model.needs import CANDIDATES, RECORDED, Needs, step_needs
from gpufrag.model.settings import SEGMENT_GRID
from gpufrag.model.step import StepEvents
from helpers import TESTS

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
    assert set(needs.smallest_limits) == {RECORDED, *CANDIDATES}
    # packing closes the gaps of unsplit blocks, so a limit may lie a little below the active peak
    assert min(needs.smallest_limits.values()) > 0.99 * raw["true_peak"]


def test_smallest_limits_are_whole_driver_units(step: tuple[dict[str, Any], Needs]) -> None:
    assert all(limit % SEGMENT_GRID == 0 for limit in step[1].smallest_limits.values())


def test_margin_is_limit_less_smallest_limit(step: tuple[dict[str, Any], Needs]) -> None:
    assert step[1].margin == 40 * GIB - step[1].smallest_limits[RECORDED]


def test_recorded_settings_equal_to_a_candidate_share_its_limit() -> None:
    raw = recorded("gpt2-exp-0")
    needs = step_needs(0, raw["heap"], raw["events"], Driver(None, 141 * GIB, None))
    assert needs.smallest_limits[RECORDED] == needs.smallest_limits["expandable_segments"]


def test_margin_without_a_limit_is_unknown() -> None:
    assert Needs(0, None, {RECORDED: 5}).margin is None


def test_events_of_another_heap_are_refused() -> None:
    raw = recorded("gpt2-def-0")
    other = recorded("llama-def-0")
    with pytest.raises(BadInput, match="do not fit"):
        step_needs(0, other["heap"], raw["events"], Driver(None, 141 * GIB, None))
