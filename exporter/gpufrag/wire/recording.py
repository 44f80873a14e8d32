"""A recording as a file: a heap that a process copied, and the allocator's events in the step that led to it, if any.

    b"gpufrag recording\\n"      magic
    8 bytes                      length of the header, little-endian
    the header                   JSON: version, time, and for each device its counts, settings and driver reading
    columns                      for each device in turn, packed little-endian integers

Columns, because a training process writes them: 20,000 events cost about 3 ms of its interpreter and 500 kB. What they
show is worked out by the reader (see measuring).
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from reprlib import repr as shown
from typing import Annotated

from ..errors import BadInput, NewerVersion
from ..model.allocatable import Driver
from ..model.heap import ALLOCATED, AWAITING, INACTIVE, Heap, Segment
from ..model.settings import INTERVALS, MIN_OWN_SEGMENT, Settings
from ..model.step import StepEvents
from . import codec
from .codec import Misfit, Most
from .sample import MOMENTS

MAGIC = b"gpufrag recording\n"
VERSION = 1
MAX_BYTES = 64 << 20
"""A file above this is not ours: 100,000 events and 500,000 blocks are 15 MB."""
MAX_HEADER = 1 << 20
DEVICES = 32
_STATES = (INACTIVE, ALLOCATED, AWAITING)
_ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom", "annotate",
)  # fmt: skip
_STATE_CODES = {state: code for code, state in enumerate(_STATES)}
_ACTION_CODES = {action: code for code, action in enumerate(_ACTIONS)}
_OTHER_ACTION = len(_ACTIONS)
_NO_EVENTS = StepEvents((), (), (), ())


@dataclass(frozen=True)
class DeviceRecording:
    """One device: its heap, the driver at that moment, and the events that led to it (None if none were recorded).

    active_before: bytes that were active before the first event, by torch's counter; None is unknown.
    """

    device: int
    heap: Heap
    events: StepEvents | None
    driver: Driver
    active_before: int | None = None


@dataclass(frozen=True)
class Recording:
    """What one process copied at `time`, in seconds of the system clock, and `at` which moment (see sample.MOMENTS).

    seconds: the length of the step. framework_version: the torch release, which decides how the allocator behaves.
    duration: how long the copy stalled the process. window: seconds within which to expect the next recording.
    """

    time: float
    seconds: float
    framework_version: str | None
    devices: tuple[DeviceRecording, ...]
    at: str = "boundary"
    duration: float = 0.0
    window: float = 10.0


@dataclass(frozen=True)
class _DeviceHeader:
    device: int
    segments: int
    blocks: int
    events: int | None
    streams: Annotated[tuple[int, ...], Most(4096)]
    driver: Driver
    settings: Settings
    active_before: int | None = None


@dataclass(frozen=True)
class _Header:
    time: float
    seconds: float
    devices: Annotated[tuple[_DeviceHeader, ...], Most(DEVICES)]
    framework_version: str | None = None
    at: str = "boundary"
    duration: float = 0.0
    window: float = 10.0


def encode(recording: Recording) -> bytes:
    """Return the file's bytes."""
    headers: list[_DeviceHeader] = []
    columns: list[bytes] = []
    for one in recording.devices:
        segments, events = one.heap.segments, one.events or _NO_EVENTS
        streams = sorted({*events.streams, *(segment.stream for segment in segments)})
        numbers = {stream: number for number, stream in enumerate(streams)}
        blocks = sum(len(segment.sizes) for segment in segments)
        counts = (len(segments), blocks, None if one.events is None else len(events.actions))
        rows = ((s.address, numbers[s.stream], *s.pool, s.small | s.expandable << 1, len(s.sizes)) for s in segments)
        described = one.driver, one.heap.settings, one.active_before
        headers.append(_DeviceHeader(one.device, *counts, tuple(streams), *described))
        columns += [
            _packed("Q", [number for row in rows for number in row]),
            _packed("Q", [size for segment in segments for size in segment.sizes]),
            _packed("Q", [size for segment in segments for size in segment.requested]),
            bytes([_STATE_CODES[state] for segment in segments for state in segment.states]),
            bytes([_ACTION_CODES.get(action, _OTHER_ACTION) for action in events.actions]),
            _packed("Q", events.addresses),
            _packed("Q", events.sizes),
            _packed("H", [numbers[stream] for stream in events.streams]),
        ]
    header = _Header(
        recording.time, recording.seconds, tuple(headers), recording.framework_version, recording.at,
        recording.duration, recording.window,
    )  # fmt: skip
    text = json.dumps({"version": VERSION, **vars(header)}, default=vars, separators=(",", ":")).encode()
    return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *columns])


def decode(data: bytes) -> Recording:
    """Return the recording in `data`. Raises BadInput if it is none, NewerVersion for a newer gpufrag's."""
    if len(data) > MAX_BYTES or not data.startswith(MAGIC):
        raise BadInput("not a step recording: it does not start as one, or is too large")
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    if length > MAX_HEADER:
        raise BadInput(f"not a step recording: a header of {length} bytes")
    header = _header(data[start : start + length])
    columns = _Columns(data, start + length)
    devices = tuple(_device(one, columns) for one in header.devices)
    columns.require_end()
    if header.at not in MOMENTS:
        raise BadInput(f"not a step recording: the moment {header.at!r} is not one of {', '.join(MOMENTS)}")
    return Recording(
        header.time, header.seconds, header.framework_version, devices, header.at, header.duration, header.window
    )


def _header(text: bytes) -> _Header:
    try:
        raw = codec.loads(text)
        version = raw.get("version") if isinstance(raw, dict) else None
        if type(version) is int and version > VERSION:
            raise NewerVersion(f"a step recording of version {version}; this gpufrag reads up to {VERSION}: upgrade it")
        header = codec.read(_Header, raw)
        for number, device in enumerate(header.devices):
            _check(device, f"devices.{number}.")
        return header
    except (ValueError, RecursionError, Misfit) as error:
        raise BadInput(f"not a step recording: {error}") from None


def _check(device: _DeviceHeader, place: str) -> None:
    """Raises Misfit for a figure that no allocator has: the model divides by some of them."""
    settings, driver = device.settings, device.driver
    divisions, reserve = settings.roundup_power2_divisions, settings.expandable_segments_reserve
    possible = {
        "driver.size": driver.size != 0,
        "settings.max_split_size": settings.max_split_size != 0,
        "settings.roundup_power2_divisions": len(divisions) == INTERVALS
        and not any(number & (number - 1) for number in divisions),
        "settings.garbage_collection_threshold": settings.garbage_collection_threshold <= 1,
        "settings.expandable_segments_reserve": reserve is None or 0 < reserve < 1 << 50,
        "settings.large_segment_size": settings.large_segment_size > MIN_OWN_SEGMENT,
        "settings.per_process_memory_fraction": settings.per_process_memory_fraction <= 1,
        "settings.torch": len(settings.torch) == 2,
    }
    for field, is_possible in possible.items():
        if not is_possible:
            raise Misfit(f"cannot be {shown(attrgetter(field)(device))}", (place + field,))


def _device(header: _DeviceHeader, columns: _Columns) -> DeviceRecording:
    rows = columns.take("Q", 6 * header.segments)
    sizes, requested = columns.take("Q", header.blocks), columns.take("Q", header.blocks)
    states = columns.names(header.blocks, _STATES)
    count = header.events or 0
    actions = columns.names(count, (*_ACTIONS, "other"))
    addresses, event_sizes = columns.take("Q", count), columns.take("Q", count)
    streams = [_stream(header, number) for number in columns.take("H", count)]
    segments: list[Segment] = []
    first = 0
    for at in range(0, len(rows), 6):
        address, stream, pool, owner, flags, count = rows[at : at + 6]
        last = first + count
        part = (tuple(sizes[first:last]), tuple(requested[first:last]), tuple(states[first:last]))
        if last > header.blocks or not count or 0 in part[0]:
            raise BadInput("not a step recording: its blocks do not fill its segments")
        segments.append(
            Segment(
                header.device, address, _stream(header, stream), bool(flags & 1), (pool, owner), bool(flags & 2), *part
            )
        )
        first = last
    if first != header.blocks or any(one.address + one.size > after.address for one, after in pairwise(segments)):
        raise BadInput("not a step recording: its segments overlap or leave blocks over")
    events = None if header.events is None else StepEvents(actions, addresses, event_sizes, streams)
    heap = Heap(tuple(segments), header.settings)
    return DeviceRecording(header.device, heap, events, header.driver, header.active_before)


def _stream(header: _DeviceHeader, number: int) -> int:
    if number >= len(header.streams):
        raise BadInput(f"not a step recording: stream number {number} of {len(header.streams)}")
    return header.streams[number]


class _Columns:
    """Reads packed columns one after the other; the counts come from an untrusted header."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = memoryview(data), at

    def take(self, kind: str, count: int) -> Sequence[int]:
        column = array(kind)
        column.frombytes(self._bytes(count * column.itemsize))
        if sys.byteorder == "big":
            column.byteswap()
        return column.tolist()

    def names(self, count: int, names: Sequence[str]) -> list[str]:
        codes = bytes(self._bytes(count))
        if codes and max(codes) >= len(names):
            raise BadInput(f"not a step recording: code {max(codes)} of {len(names)}")
        return [names[code] for code in codes]

    def require_end(self) -> None:
        if self._at != len(self._data):
            raise BadInput(f"not a step recording: {len(self._data) - self._at} bytes are left over")

    def _bytes(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._data):
            raise BadInput("not a step recording: it is cut off")
        part = self._data[self._at : end]
        self._at = end
        return part


def _packed(kind: str, numbers: Iterable[int]) -> bytes:
    column = array(kind, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
