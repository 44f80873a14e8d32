"""Every sample survives encoding and decoding; anything else is rejected."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput, NewerVersion
from gpufrag.model.fragmentation import SIZE_BOUNDS, Fragmentation, Pool, measure
from gpufrag.wire.sample import (
    MAX_BYTES,
    MOMENTS,
    SCHEMA,
    AgentHealth,
    Counters,
    DeviceSample,
    DriverReading,
    GrowingStack,
    Identity,
    Leak,
    PoolTotals,
    ProcessSample,
    Snapshot,
    Sums,
    Totals,
    decode,
    encode,
)
from helpers import GoldenCase
from strategies import JSON

Raw = dict[str, Any]
NUMBERS = st.integers(0, (1 << 64) - 1)
SECONDS = st.floats(0, 1 << 40, allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


BUCKETS = st.lists(NUMBERS, min_size=len(SIZE_BOUNDS) + 1, max_size=len(SIZE_BOUNDS) + 1)
POOLS = st.builds(Pool, reserved=NUMBERS, allocated=NUMBERS, free_cached=NUMBERS, free_block_sizes=BUCKETS)
FRAGMENTATIONS = st.builds(
    Fragmentation,
    device=NUMBERS,
    stream=NUMBERS,
    large=POOLS,
    small=POOLS,
    private_pool_reserved=NUMBERS,
    captive=NUMBERS,
    limit=maybe(NUMBERS),
    headroom=maybe(NUMBERS),
    free_total=maybe(NUMBERS),
    largest_allocatable=maybe(NUMBERS),
)
POOL_TOTALS = st.builds(
    PoolTotals, allocated=NUMBERS, active=NUMBERS, requested=NUMBERS, reserved=NUMBERS, inactive_split=NUMBERS
)
TOTALS = st.builds(
    Totals,
    time=SECONDS,
    large=POOL_TOTALS,
    small=POOL_TOTALS,
    peak_active=NUMBERS,
    peak_reserved=NUMBERS,
    counters=st.builds(Counters, alloc_retries=maybe(NUMBERS), ooms=maybe(NUMBERS)),
    private_pool_reserved=maybe(NUMBERS),
)
SUMS = st.builds(Sums, time=SECONDS, allocated=maybe(NUMBERS), reserved=maybe(NUMBERS), free_total=maybe(NUMBERS))
STACKS = st.builds(GrowingStack, grown=NUMBERS, blocks=NUMBERS, frames=st.lists(TEXTS, max_size=2).map(tuple))
LEAKS = st.builds(Leak, unit=TEXTS, rate=SECONDS, low=SECONDS, stacks=st.lists(STACKS, max_size=2).map(tuple))
DEVICES = st.builds(
    DeviceSample,
    device=NUMBERS,
    sums=maybe(SUMS),
    leak=maybe(LEAKS),
    framework=maybe(TEXTS),
    backend=TEXTS,
    uuid=maybe(TEXTS),
    alloc_conf=maybe(TEXTS),
    limit=maybe(NUMBERS),
    totals=maybe(TOTALS),
    driver=maybe(st.builds(DriverReading, time=SECONDS, free=NUMBERS, size=NUMBERS)),
    snapshots=st.lists(
        st.builds(
            Snapshot, time=SECONDS, at=st.sampled_from(MOMENTS), duration=SECONDS, measured=FRAGMENTATIONS
        ),
        max_size=2,
    ).map(tuple),
)  # fmt: skip
SAMPLES = st.builds(
    ProcessSample,
    identity=st.builds(Identity, host=TEXTS, pid=NUMBERS, start=SECONDS, rank=maybe(NUMBERS), framework=maybe(TEXTS)),
    time=SECONDS,
    devices=st.lists(DEVICES, max_size=2).map(tuple),
    steps=maybe(NUMBERS),
    health=st.builds(
        AgentHealth,
        stall_seconds=st.dictionaries(TEXTS, SECONDS, max_size=2),
        errors=st.dictionaries(TEXTS, NUMBERS, max_size=2),
    ),
)
SMALLEST = ProcessSample(Identity("host", 1, 0.5), 1.5)


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(SMALLEST)), **changes}).encode()


@given(SAMPLES)
def test_sample_round_trips(sample: ProcessSample) -> None:
    assert decode(encode(sample)) == sample


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


@pytest.mark.parametrize("schema", [SCHEMA + 1, 1 << 62])
def test_newer_schema_is_its_own_error(schema: int) -> None:
    with pytest.raises(NewerVersion, match=f"schema {schema}, .*; upgrade the reader"):
        decode(changed(schema=schema, identity="of another form"))


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "invalid JSON"),
    "torn": (encode(SMALLEST)[:-9], "invalid JSON"),
    "two lines": (encode(SMALLEST) * 2, "invalid JSON"),
    "not UTF-8": (b'{"schema":1,"\xff":2}', "invalid JSON"),
    "UTF-16": ('{"schema":1}'.encode("utf-16"), "invalid JSON"),
    "not a number, where nobody looks": (changed(weather=float("nan")), "invalid JSON"),
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
        decode(b" " * (MAX_BYTES + 1))


def test_histogram_of_other_bounds_is_refused() -> None:
    snapshot = Snapshot(1.0, "timer", 0.0, Fragmentation(0, 0, Pool(), Pool(), 0, 0, None, None, None, None))
    data = encode(replace(SMALLEST, devices=(DeviceSample(0, "native", snapshots=(snapshot,)),)))
    with pytest.raises(BadInput, match=r"devices.snapshots.measured.large is invalid: expected 14 buckets, found 1"):
        decode(re.sub(rb'"free_block_sizes":\[[^]]*\]', b'"free_block_sizes":[0]', data, count=1))


@given(st.binary())
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode(data)


@given(SAMPLES, st.data())
def test_changed_sample_is_read_or_refused(sample: ProcessSample, data: st.DataObject) -> None:
    raw = json.loads(encode(sample))
    change = data.draw(st.sampled_from((replace_one, cut, flip)))
    read_or_refuse(change(raw, data))


def replace_one(raw: Raw, data: st.DataObject) -> bytes:
    record = data.draw(st.sampled_from([raw, raw["identity"], raw["health"], *raw["devices"]]))
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(JSON)
    return json.dumps(raw).encode()


def cut(raw: Raw, data: st.DataObject) -> bytes:
    whole = json.dumps(raw).encode()
    return whole[: data.draw(st.integers(0, len(whole) - 1))]


def flip(raw: Raw, data: st.DataObject) -> bytes:
    damaged = bytearray(json.dumps(raw).encode())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    return bytes(damaged)


def read_or_refuse(data: bytes) -> None:
    """What is read can be written again, so that it can be served."""
    try:
        sample = decode(data)
    except BadInput as error:
        refusal = str(error)
        assert len(refusal.splitlines()) == 1
    else:
        assert decode(encode(sample)) == sample
