"""Every report survives encoding and decoding; anything else is rejected."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput, NewerVersion
from gpufrag.model.fragmentation import measure
from gpufrag.wire.oom_report import MAX_BYTES, SCHEMA, Frame, OomReport, Point, decode, encode, headline
from gpufrag.wire.sample import DriverReading, Identity
from helpers import golden_case_named
from strategies import JSON

NUMBERS = st.integers(0, (1 << 64) - 1)
SECONDS = st.floats(0, 1 << 40, allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
REPORTS = st.builds(
    OomReport,
    identity=st.builds(Identity, host=TEXTS, pid=NUMBERS, start=SECONDS, rank=st.none() | NUMBERS),
    number=st.integers(1, 1000),
    time=SECONDS,
    device=NUMBERS,
    requested=NUMBERS,
    cause=TEXTS,
    evidence=st.lists(TEXTS, max_size=3).map(tuple),
    measured=st.none() | st.just(measure(golden_case_named("kv-default").heap, golden_case_named("kv-default").driver)),
    driver=st.none() | st.builds(DriverReading, time=SECONDS, free=NUMBERS, size=NUMBERS),
    steps=st.none() | NUMBERS,
    stack=st.lists(st.builds(Frame, TEXTS, NUMBERS, TEXTS), max_size=3).map(tuple),
    recent=st.lists(st.builds(Point, SECONDS, st.none() | NUMBERS), max_size=3).map(tuple),
)
SMALLEST = OomReport(Identity("host", 7, 0.5), 2, 1.5, 0, 2 << 30, "capacity", next_step="ask for less")
TORCH = Frame("/usr/lib/python3/dist-packages/torch/nn/linear.py", 5, "forward")
OWN = Frame("/home/me/torch/train.py", 12, "main")


@given(REPORTS)
def test_report_round_trips(report: OomReport) -> None:
    assert decode(encode(report)) == report


@given(REPORTS)
def test_headline_is_one_line(report: OomReport) -> None:
    assert headline(report).isprintable()


def test_headline_has_figures_place_and_next_step() -> None:
    case = golden_case_named("train-cap4")
    report = replace(SMALLEST, measured=measure(case.heap, case.driver), stack=(TORCH, OWN))
    assert headline(report) == (
        "out of memory on device 0: capacity; 2.00 GiB requested; the largest request that would succeed "
        "is 3.49 GiB; at /home/me/torch/train.py:12 in main; next: ask for less"
    )


def test_place_is_the_programs_own_frame() -> None:
    assert replace(SMALLEST, stack=(TORCH, OWN)).place == OWN
    assert replace(SMALLEST, stack=(TORCH,)).place == TORCH
    assert SMALLEST.place is None


def changed(**changes: object) -> bytes:
    return json.dumps({**json.loads(encode(SMALLEST)), **changes}).encode()


def test_newer_report_is_its_own_error() -> None:
    with pytest.raises(NewerVersion, match=f"report has schema {SCHEMA + 1}"):
        decode(changed(schema=SCHEMA + 1))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", "not a report: invalid JSON"),
        (b" " * (MAX_BYTES + 1), "limit"),
        (changed(number=None), "number is None"),
        (changed(stack=[{"file": 5}]), "stack.file is a int"),
        (b'{"schema": 1}', "lacks cause, device"),
    ],
)
def test_invalid_report_names_the_field(data: bytes, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        decode(data)


@given(st.sampled_from(sorted(json.loads(encode(SMALLEST)))), JSON)
def test_changed_report_is_read_or_refused(key: str, value: object) -> None:
    try:
        report = decode(changed(**{key: value}))
    except BadInput as error:
        refusal = str(error)
        assert len(refusal.splitlines()) == 1
    else:
        assert decode(encode(report)) == report
