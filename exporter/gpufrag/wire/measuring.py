"""What a recording shows: measured snapshots, and the step between them.

The sidecar measures the files that agents write. A process that serves its own metrics, and the report of an
out-of-memory error, do the same in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ..errors import BadInput
from ..model.allocatable import Driver
from ..model.fragmentation import measure
from ..model.heap import Heap
from ..model.step import Step, read_step
from .recording import DeviceRecording, Recording
from .sample import Snapshot

WINDOWS_KEPT = 6
"""A snapshot this many windows older than the newest one is dropped: its kind is no longer taken."""
WINDOWS_KEPT_ALONE = 15
"""A snapshot is dropped after this many windows, even if no newer one was taken."""
SHORTEST_WINDOW = 10.0
"""Seconds that a window counts for these two, at least."""


class Measured(NamedTuple):
    """One device of a recording."""

    device: int
    snapshots: tuple[Snapshot, ...]
    """Of the recorded moment, and of the step's peak if its events lead to the heap."""
    step: Step | None
    inconsistent: bool
    """The events do not lead to the heap: another thread allocated while they were read."""


def measure_recording(recording: Recording) -> tuple[Measured, ...]:
    """Raises BadInput if a heap cannot be measured."""
    return tuple(_measure(recording, one) for one in recording.devices)


def _measure(recording: Recording, one: DeviceRecording) -> Measured:
    shown = Snapshot(recording.time, recording.at, recording.duration, measure(one.heap, one.driver))
    if one.events is None:
        return Measured(one.device, (shown,), None, False)
    try:
        step = read_step(one.events, one.heap, one.active_before)
    except BadInput:
        return Measured(one.device, (shown,), None, True)
    peak = measure(step.peak, _driver_at(step.peak, one))
    snapshots = shown, Snapshot(recording.time, "peak", recording.duration, peak)
    return Measured(one.device, snapshots, step, False)


def _driver_at(heap: Heap, one: DeviceRecording) -> Driver:
    """The driver as it was when the process held `heap`: what it took and returned since then is undone."""
    driver = one.driver
    if driver.free is None or driver.size is None:
        return driver
    free = driver.free + _reserved(one.heap) - _reserved(heap)
    return replace(driver, free=min(max(0, free), driver.size))


def _reserved(heap: Heap) -> int:
    return sum(segment.size for segment in heap.segments)


def current(snapshots: Iterable[Snapshot], now: float, window: float) -> tuple[Snapshot, ...]:
    """The snapshots, by moment, that still describe the present; `window` is in seconds.

    The worst moment of a job is what alerts judge, so one that is no longer taken must not be judged for ever.
    """
    found = sorted(snapshots, key=lambda snapshot: snapshot.at)
    latest = max((min(now, snapshot.time) for snapshot in found), default=now)  # the clock may have been set back
    counted = max(window, SHORTEST_WINDOW)
    return tuple(
        snapshot
        for snapshot in found
        if latest - snapshot.time <= WINDOWS_KEPT * counted and now - snapshot.time <= WINDOWS_KEPT_ALONE * counted
    )
