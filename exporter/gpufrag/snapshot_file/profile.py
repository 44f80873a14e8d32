"""The profile of each device of a saved snapshot: over its trace if it has one, else of its heap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import BadInput, UsageError
from ..model.allocatable import limited
from ..model.heap import Heap
from ..model.trace.columns import Trace, read_trace
from ..model.trace.events import parse_rows
from ..model.trace.profile import Profile, frames_of_blocks, profile_heap, profile_trace
from .reading import read_raw


class DeviceProfile(NamedTuple):
    profile: Profile
    events: Trace
    """Empty if there is no trace."""
    end: Heap


def read_profiles(
    raw: Any,
    driver: Mapping[str, int],
    device: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    others: int | None = None,
) -> list[DeviceProfile]:
    """Profile every device of what `load` returned, or one.

    driver: free, size and limit in bytes, as far as given; they replace those of the file. others: bytes of other
    processes on the device. Raises BadInput, and UsageError for a missing device.
    """
    saved = read_raw(raw)
    segments = raw["segments"] if isinstance(raw, Mapping) else raw
    traces = _traces(raw)
    devices = sorted({*saved.heap.devices, *traces})
    if device is not None and device not in devices:
        raise UsageError(f"--device {device}: the file has device {', '.join(map(str, devices)) or '(none)'}")
    if (driver or others is not None) and len(devices) > 1 and device is None:
        raise UsageError(f"the file has devices {', '.join(map(str, devices))}; choose one with --device")
    result = []
    for index in devices if device is None else [device]:
        heap = saved.heap.on_device(index)
        own = limited(replace(saved.driver, **driver), heap.settings)
        trace = traces.get(index, Trace())
        frames = frames_of_blocks(segments, index)
        profile, note = None, ""
        if trace:
            try:
                profile = profile_trace(trace, heap, own, frames, progress)
            except BadInput as error:  # the history's buffer was too small, for example
                note, trace = f"the trace does not fit the heap and is ignored: {error}", Trace()
        if profile is None:
            profile = replace(profile_heap(heap, own, frames), note=note)
        result.append(DeviceProfile(replace(profile, others=others), trace, heap))
    return result


def _traces(raw: Any) -> dict[int, Trace]:
    if not isinstance(raw, Mapping):
        return {}
    if isinstance(raw.get("events"), list):
        columns = raw.get("events_columns")
        if not isinstance(columns, list):
            raise BadInput("its events have no events_columns")
        return {0: Trace(parse_rows(raw["events"], columns))}
    traces = raw.get("device_traces")
    if not isinstance(traces, list):
        return {}
    return {index: read_trace(trace) for index, trace in enumerate(traces) if trace}
