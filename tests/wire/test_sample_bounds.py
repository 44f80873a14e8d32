"""Bounds on one file: a broken or forged sample cannot make a reader show more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fake_agents import device_sample
from gpufrag.errors import BadInput
from gpufrag.metrics import families
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.model.verdict import Cause
from gpufrag.wire.sample import (
    CAUSES,
    DEVICES,
    MOMENTS,
    SNAPSHOTS,
    SOURCES,
    AgentHealth,
    DeviceSample,
    Identity,
    Ooms,
    ProcessSample,
    decode,
    encode,
)

Raw = dict[str, Any]


def device(number: int = 0, **changes: Any) -> Raw:
    return {"device": number, "backend": "native", **changes}


def counts(number: int) -> Raw:
    return {f"kind {index}": 1 for index in range(number)}


TOO_MUCH: dict[str, tuple[Raw, str]] = {
    "error sources": ({"health": {"errors": counts(SOURCES + 1)}}, "health.errors has 65 items \\(limit 64\\)"),
    "stall causes": ({"health": {"stall_seconds": counts(CAUSES + 1)}}, "health.stall_seconds has 17 items"),
    "devices": ({"devices": [device(number) for number in range(DEVICES + 1)]}, "devices has 33 items"),
    "moments": ({"devices": [device(snapshots=[{}] * (SNAPSHOTS + 1))]}, "snapshots has 5 items"),
    "places that grow": ({"devices": [device(leak={"unit": "step", "stacks": [{}] * 17})]}, "leak.stacks has 17 items"),
    "frames of a place": (
        {"devices": [device(leak={"unit": "step", "stacks": [{"grown": 1, "blocks": 1, "frames": ["f"] * 17}]})]},
        "frames has 17 items",
    ),
    "verdicts": ({"devices": [device(ooms={"causes": counts(CAUSES + 1)})]}, "ooms.causes has 17 items"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_sample_above_a_bound_is_refused(what: str) -> None:
    changes, message = TOO_MUCH[what]
    raw = json.loads(encode(ProcessSample(Identity("host", 1, 0.5), 1.5)))
    with pytest.raises(BadInput, match=message):
        decode(json.dumps({**raw, **changes}).encode())


def test_sample_at_the_bounds_is_read() -> None:
    devices = tuple(DeviceSample(number, "native", ooms=Ooms(counts(CAUSES))) for number in range(DEVICES))
    health = AgentHealth(counts(CAUSES), counts(SOURCES))
    sample = ProcessSample(Identity("host", 1, 0.5), 1.5, devices, health=health)
    assert decode(encode(sample)) == sample


def test_bounds_leave_room_for_later_releases() -> None:
    """Of one more moment or cause no older reader may make a file that it refuses."""
    assert len(MOMENTS) < SNAPSHOTS
    assert len(Cause) * 2 <= CAUSES


def test_largest_sample_makes_few_series() -> None:
    snapshot = device_sample("kv-default", 1.0).snapshots[0]
    snapshots = tuple(replace(snapshot, at=f"moment {number}") for number in range(SNAPSHOTS))
    devices = tuple(replace(device_sample("kv-default", 1.0), device=n, snapshots=snapshots) for n in range(DEVICES))
    health = AgentHealth(counts(CAUSES), counts(SOURCES))
    rank = RankView(ProcessSample(Identity("host", 1, 0.5, 0), 1.5, devices, health=health))
    assert sum(len(family.samples) for family in families(Fleet(1.5, (rank,)))) < 10_000
