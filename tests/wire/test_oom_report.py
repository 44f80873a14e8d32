"""Every report survives encoding and decoding; anything else is rejected."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufrag.errors import BadInput, NewerVersion
from gpufrag.model.fragmentation import measure
from gpufrag.wire.oom_report import MAX_BYTES, SCHEMA, Frame, OomReport, decode, encode, headline
from gpufrag.wire.sample import Identity
from helpers import golden_case_named
from wire.records import any_of, assert_read_or_refused, damaged

LARGE = settings(suppress_health_check=list(HealthCheck))
SMALLEST = OomReport(Identity("host", 7, 0.5), 2, 1.5, 0, 2 << 30, "capacity", next_step="ask for less")
TORCH = Frame("/usr/lib/python3/dist-packages/torch/nn/linear.py", 5, "forward")
OWN = Frame("/home/me/torch/train.py", 12, "main")


@LARGE
@given(any_of(OomReport), st.data())
def test_any_report_round_trips_or_is_refused(report: OomReport, data: st.DataObject) -> None:
    assert decode(encode(report)) == report
    assert headline(report).isprintable()
    assert_read_or_refused(data.draw(damaged(encode(report))), decode, encode)


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
    ("data", "message"),
    [
        (b"{", "not a report: invalid JSON"),
        (b" " * (MAX_BYTES + 1), "limit"),
        (changed(number=None), "number is None"),
        (changed(stack=[{"file": 5}]), "stack.file is a int"),
        (b'{"schema": 1}', "lacks cause, device"),
    ],
)
def test_invalid_report_names_the_field(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        decode(data)
