"""Step recordings as files: what is written is read again, and broken files are refused."""

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput, NewerVersion
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import INACTIVE, Heap, parse
from gpufrag.model.step import StepEvents
from gpufrag.wire.recording import MAGIC, DeviceRecording, Recording, decode, encode
from helpers import TESTS
from strategies import snapshots

STEPS = sorted((TESTS / "fixtures/steps").glob("*.json.gz"))
SMALL = Recording(5.0, 1.5, "2.11.0", ())


def recorded(path: Path) -> DeviceRecording:
    raw = json.loads(gzip.decompress(path.read_bytes()))
    return DeviceRecording(0, parse(raw["snapshot"]), StepEvents(**raw["events"]), Driver(1 << 30, 2 << 30, None))


@pytest.fixture(scope="module")
def encoded() -> bytes:
    return encode(Recording(5.0, 1.5, "2.11.0", (recorded(STEPS[0]),)))


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.name)
def test_recorded_step_survives_encoding(path: Path) -> None:
    written = recorded(path)
    read = decode(encode(Recording(5.0, 1.5, "2.11.0", (written,)))).devices[0]
    assert (read.device, read.heap, read.driver) == (0, written.heap, written.driver)
    assert list(map(list, read.events)) == list(map(list, written.events))


@pytest.mark.parametrize("reserve", [0.5, 3 << 30, None])
def test_share_stays_a_share_and_bytes_stay_bytes(reserve: int | float | None) -> None:
    small = recorded_small()
    settings = replace(small.heap.settings, expandable_segments_reserve=reserve)
    written = replace(small, heap=Heap(small.heap.segments, settings))
    read = decode(encode(Recording(5.0, 1.5, "2.15.0", (written,)))).devices[0].heap.settings
    assert read == settings


@given(snapshots(), st.floats(0, 1e9))
def test_any_heap_survives_encoding(snapshot: dict[str, Any], seconds: float) -> None:
    heap = parse(snapshot)
    events = StepEvents(["alloc", "surprise"], [1, 2], [512, 0], [0, 7])
    written = Recording(0.0, seconds, None, (DeviceRecording(3, heap, events, Driver()),))
    (read,) = decode(encode(written)).devices
    assert [segment._replace(device=0) for segment in read.heap.segments] == list(heap.segments)
    assert read.heap.settings == heap.settings
    assert read.events.actions == ["alloc", "other"]  # an action of a newer torch has no name here


@pytest.mark.parametrize("cut", [0, 5, len(MAGIC) + 3, 200, -1])
def test_truncated_file_is_refused(cut: int, encoded: bytes) -> None:
    with pytest.raises(BadInput, match="not a step recording"):
        decode(encoded[:cut])


def test_file_with_extra_bytes_is_refused(encoded: bytes) -> None:
    with pytest.raises(BadInput, match="1 bytes are left over"):
        decode(encoded + b"x")


def test_newer_version_is_named() -> None:
    assert decode(encode(SMALL)) == SMALL
    with pytest.raises(NewerVersion, match="upgrade"):
        decode(encode(SMALL).replace(b'"version":1', b'"version":9'))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: MAGIC + (2 << 20).to_bytes(8, "little"), "a header of 2097152 bytes"),
        (lambda data: data.replace(b'"streams":[0]', b'"streams":[ ]'), "stream number 0 of 0"),
        (lambda data: data[:-19] + b"c" + data[-18:], "code 99 of"),  # the action of the only event
    ],
)
def test_impossible_figure_is_refused(change: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        decode(change(encode(Recording(5.0, 1.5, "2.11.0", (recorded_small(),)))))


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("driver", {"size": 0}, "devices.0.driver.size cannot be 0"),
        ("settings", {"large_segment_size": 0}, "devices.0.settings.large_segment_size cannot be 0"),
        ("settings", {"expandable_segments_reserve": 0}, "devices.0.settings.expandable_segments_reserve cannot be 0"),
        (
            "settings",
            {"expandable_segments_reserve": 1e18},
            r"devices.0.settings.expandable_segments_reserve cannot be 1e\+18",
        ),
        ("settings", {"max_split_size": 0}, "devices.0.settings.max_split_size cannot be 0"),
        ("settings", {"roundup_power2_divisions": ()}, r"devices.0.settings.roundup_power2_divisions cannot be \(\)"),
        ("settings", {"roundup_power2_divisions": (3,) * 16}, "devices.0.settings.roundup_power2_divisions cannot be"),
        ("settings", {"garbage_collection_threshold": 1.5}, "devices.0.settings.garbage_collection_threshold cannot"),
        ("settings", {"per_process_memory_fraction": 2.0}, "devices.0.settings.per_process_memory_fraction cannot be"),
        ("settings", {"torch": (2,)}, r"devices.0.settings.torch cannot be \(2,\)"),
    ],
)
def test_impossible_field_is_named(part: str, changes: dict[str, Any], message: str) -> None:
    small = recorded_small()
    if part == "driver":
        small = replace(small, driver=replace(small.driver, **changes))
    else:
        small = replace(small, heap=Heap(small.heap.segments, replace(small.heap.settings, **changes)))
    with pytest.raises(BadInput, match=f"not a step recording: {message}"):
        decode(encode(Recording(5.0, 1.5, "2.11.0", (small,))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({}, "segments overlap"), ({"sizes": (0,), "requested": (0,), "states": (INACTIVE,)}, "do not fill its segments")],
)
def test_impossible_segments_are_refused(changes: dict[str, Any], message: str) -> None:
    small = recorded_small()
    (segment,) = small.heap.segments
    broken = replace(small, heap=Heap((segment, segment._replace(**changes))))
    with pytest.raises(BadInput, match=message):
        decode(encode(Recording(5.0, 1.5, "2.11.0", (broken,))))


@given(st.data())
def test_damaged_file_never_raises_anything_else(data: st.DataObject) -> None:
    damaged = bytearray(encode(Recording(5.0, 1.5, "2.11.0", (recorded_small(),))))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadInput):
        decode(bytes(damaged))


def recorded_small() -> DeviceRecording:
    used = {"address": 1 << 30, "size": 512, "requested_size": 4, "state": "active_allocated"}
    rest = {"address": (1 << 30) + 512, "size": (2 << 20) - 512, "requested_size": 0, "state": "inactive"}
    segment = {"device": 0, "address": 1 << 30, "total_size": 2 << 20, "stream": 0, "segment_type": "small"}
    heap = parse({"segments": [{**segment, "blocks": [used, rest]}]})
    return DeviceRecording(0, heap, StepEvents(["alloc"], [1 << 30], [4], [0]), Driver(5, 6, 7))
