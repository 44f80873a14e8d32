"""Every sample survives encoding and decoding; anything else, and any sample above the bounds, is rejected."""

import json
import os
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_agents import device_sample
from gpufrag.errors import BadInput, NewerVersion
from gpufrag.metrics import families
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.model.fragmentation import Fragmentation, Pool, measure
from gpufrag.model.verdict import Cause
from gpufrag.wire import sample as module
from gpufrag.wire.sample import (
    CAUSES,
    DEVICES,
    SNAPSHOTS,
    SOURCES,
    AgentHealth,
    DeviceSample,
    Identity,
    Ooms,
    ProcessSample,
    Snapshot,
    decode,
    encode,
)
from helpers import GoldenCase
from wire.records import any_of, assert_read_or_refused, damaged

Raw = dict[str, Any]
SMALLEST = ProcessSample(Identity("host", 1, 0.5), 1.5)
LARGE = settings(suppress_health_check=list(HealthCheck))


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(SMALLEST)), **changes}).encode()


@LARGE
@given(any_of(ProcessSample), st.data())
def test_any_sample_round_trips_or_is_refused(sample: ProcessSample, data: st.DataObject) -> None:
    assert decode(encode(sample)) == sample
    assert_read_or_refused(data.draw(damaged(encode(sample))), decode, encode)


def test_measured_heap_round_trips(golden_case: GoldenCase) -> None:
    snapshot = Snapshot(2.0, "boundary", 0.001, measure(golden_case.heap, golden_case.driver))
    sample = replace(SMALLEST, devices=(DeviceSample(0, "native", snapshots=(snapshot,)),))
    assert decode(encode(sample)) == sample


def test_invalid_text_is_replaced() -> None:
    """As an environment variable may hold them."""
    device = DeviceSample(0, "native", alloc_conf=os.fsdecode(b"expandable_\xffsegments:True"))
    read = decode(encode(ProcessSample(Identity("host", 1, 2.0), 3.0, (device,))))
    assert read.devices[0].alloc_conf == "expandable_?segments:True"


def test_sample_is_one_line() -> None:
    assert encode(replace(SMALLEST, identity=Identity("a\nb", 1, 0.5))).count(b"\n") == 1


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_not_written(figure: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(replace(SMALLEST, time=figure))


def test_missing_field_takes_its_default() -> None:
    assert decode(b'{"schema":1,"identity":{"host":"host","pid":1,"start":0.5},"time":1.5}') == SMALLEST


def test_unknown_keys_are_ignored() -> None:
    assert decode(changed(weather={"rain": [1]})) == SMALLEST


def test_whole_seconds_may_be_integers() -> None:
    assert decode(changed(time=2)).time == 2.0


@pytest.mark.parametrize("schema", [module.SCHEMA + 1, 1 << 62])
def test_newer_schema_is_its_own_error(schema: int) -> None:
    with pytest.raises(NewerVersion, match=f"schema {schema}, .*; upgrade gpufrag"):
        decode(changed(schema=schema, identity="of another form"))


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "invalid JSON"),
    "torn": (encode(SMALLEST)[:-9], "invalid JSON"),
    "two lines": (encode(SMALLEST) * 2, "invalid JSON"),
    "not UTF-8": (b'{"schema":1,"\xff":2}', "invalid JSON"),
    "UTF-16": ('{"schema":1}'.encode("utf-16"), "invalid JSON"),
    "not a number in an unknown key": (changed(weather=float("nan")), "invalid JSON"),
    "infinity": (changed(time=float("inf")), "invalid JSON"),
    "infinity by overflow": (changed(time=5).replace(b'"time": 5', b'"time": 1e999'), "time is inf, not a number"),
    "nested too deep": (b'{"schema":1,"x":' + b"[" * 100_000, "invalid JSON"),
    "a number of 5000 digits": (b'{"schema":' + b"9" * 5000 + b"}", "invalid JSON"),
    "no record": (b"[1]", "no schema number"),
    "no schema": (b"{}", "no schema number"),
    "a schema that is a truth": (changed(schema=True), "no schema number"),
    "schema 0": (changed(schema=0), "no schema number"),
    "no identity": (b'{"schema":1,"time":1}', "it lacks identity"),
    "no pid": (changed(identity={"host": "a", "start": 1}), "identity lacks pid"),
    "a list for a record": (changed(identity=[]), "identity is a list, not a record"),
    "a record for a list": (changed(devices={}), "devices is a dict, not a list"),
    "text for a number": (changed(steps="5"), "steps is '5', not a whole number"),
    "a truth for a number": (changed(steps=True), "steps is True, not a whole number"),
    "a fraction of a step": (changed(steps=1.5), "steps is 1.5, not a whole number"),
    "a negative number": (changed(steps=-1), "steps is -1, not a whole number"),
    "more than 64 bits": (changed(steps=1 << 64), "steps is 18446744073709551616, not a whole number"),
    "a negative time": (changed(time=-1.0), "time is -1.0, not a number"),
    "nothing where there must be something": (changed(time=None), "time is None, not a number"),
    "half a character": (changed(identity={"host": "\ud800", "pid": 1, "start": 1}), "host is not valid Unicode"),
    "a number for a text": (changed(identity={"host": 5, "pid": 1, "start": 1}), "host is a int, not a string"),
    "a list inside": (changed(health={"errors": {"stats": []}}), r"health.errors.stats is \[\], not a whole"),
}  # fmt: skip


@pytest.mark.parametrize("way", BAD)
def test_invalid_sample_names_the_field(way: str) -> None:
    data, message = BAD[way]
    with pytest.raises(BadInput, match=message):
        decode(data)


def test_too_large_file_is_refused() -> None:
    with pytest.raises(BadInput, match="limit"):
        decode(b" " * (module.MAX_BYTES + 1))


def test_histogram_of_other_bounds_is_refused() -> None:
    snapshot = Snapshot(1.0, "timer", 0.0, Fragmentation(0, 0, Pool(), Pool(), 0, 0, None, None, None, None))
    data = encode(replace(SMALLEST, devices=(DeviceSample(0, "native", snapshots=(snapshot,)),)))
    with pytest.raises(BadInput, match=r"devices.snapshots.measured.large is invalid: expected 14 buckets, found 1"):
        decode(re.sub(rb'"free_block_sizes":\[[^]]*\]', b'"free_block_sizes":[0]', data, count=1))


@given(st.binary())
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode(data)


# --- bounds


def device(number: int = 0, **changes: Any) -> Raw:
    return {"device": number, "backend": "native", **changes}


def counts(number: int) -> Raw:
    return {f"kind {index}": 1 for index in range(number)}


TOO_MUCH: dict[str, tuple[Raw, str]] = {
    "error sources": ({"health": {"errors": counts(SOURCES + 1)}}, "health.errors has 65 items \\(limit 64\\)"),
    "stall causes": ({"health": {"stall_seconds": counts(CAUSES + 1)}}, "health.stall_seconds has 17 items"),
    "devices": ({"devices": [device(number) for number in range(DEVICES + 1)]}, "devices has 33 items"),
    "moments": ({"devices": [device(snapshots=[{}] * (SNAPSHOTS + 1))]}, "snapshots has 5 items"),
    "growing stacks": ({"devices": [device(leak={"unit": "step", "stacks": [{}] * 17})]}, "leak.stacks has 17 items"),
    "frames of a stack": (
        {"devices": [device(leak={"unit": "step", "stacks": [{"grown": 1, "blocks": 1, "frames": ["f"] * 17}]})]},
        "frames has 17 items",
    ),
    "causes": ({"devices": [device(ooms={"causes": counts(CAUSES + 1)})]}, "ooms.causes has 17 items"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_sample_above_a_bound_is_refused(what: str) -> None:
    changes, message = TOO_MUCH[what]
    with pytest.raises(BadInput, match=message):
        decode(changed(**changes))


def test_sample_at_the_bounds_is_read() -> None:
    devices = tuple(DeviceSample(number, "native", ooms=Ooms(counts(CAUSES))) for number in range(DEVICES))
    sample = replace(SMALLEST, devices=devices, health=AgentHealth(counts(CAUSES), counts(SOURCES)))
    assert decode(encode(sample)) == sample


def test_bounds_leave_room_for_later_releases() -> None:
    """Of one more moment or cause no older reader may make a file that it refuses."""
    assert len(module.MOMENTS) < SNAPSHOTS
    assert len(Cause) * 2 <= CAUSES


def test_largest_sample_makes_few_series() -> None:
    snapshot = device_sample("kv-default", 1.0).snapshots[0]
    snapshots = tuple(replace(snapshot, at=f"moment {number}") for number in range(SNAPSHOTS))
    devices = tuple(replace(device_sample("kv-default", 1.0), device=n, snapshots=snapshots) for n in range(DEVICES))
    health = AgentHealth(counts(CAUSES), counts(SOURCES))
    rank = RankView(ProcessSample(Identity("host", 1, 0.5, 0), 1.5, devices, health=health))
    assert sum(len(family.samples) for family in families(Fleet(1.5, (rank,)))) < 10_000
