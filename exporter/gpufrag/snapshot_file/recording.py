"""A saved trace: the events of one device, and the heap in which they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadInput, UsageError
from ..model.allocatable import Driver
from ..model.heap import Heap
from ..model.settings import NEWEST
from ..model.trace.events import Event, parse_rows, parse_trace
from ..model.trace.repair import read_repaired
from ..model.trace.whatif import Run, ends_as_recorded
from .reading import Saved, load, name_of, read_raw, size_of

HOW = (
    "call torch.cuda.memory._record_memory_history() when the job starts, and torch.cuda.memory._dump_snapshot() later"
)


class Recording(NamedTuple):
    """A trace with its end. `before`: the driver's reading before the first event, `limit`: the process's, if known."""

    name: str
    device: int
    events: Sequence[Event]
    end: Heap
    before: Driver
    limit: int | None
    conf: str
    """PYTORCH_CUDA_ALLOC_CONF during the recording; empty if it was unset or is unknown."""
    release_known: bool = True
    """Whether the release of torch is known: from the file, its keys, or the caller."""


def read_recording(source: str | Path, device: int | None = None, torch: str | None = None) -> Recording:
    """Return the trace in a file: a snapshot with history, or the JSON form with `events`.

    torch: the release, for a file that does not name it. Raises BadInput for a file that is broken or has no history,
    UsageError if `device` is missing or ambiguous, Unavailable if the file cannot be read.
    """
    recordings = read_recordings(source, device, torch)
    if len(recordings) > 1:
        devices = ", ".join(str(recording.device) for recording in recordings)
        raise UsageError(f"{name_of(source)} holds traces of devices {devices}: choose one with --device")
    return recordings[0]


def read_recordings(source: str | Path, device: int | None = None, torch: str | None = None) -> list[Recording]:
    """Return the traces of all devices in a file, or of one. Raises like read_recording."""
    raw = load(source)
    name = name_of(source)
    if not isinstance(raw, Mapping):
        raise BadInput(f"{name}: a list of segments has no history; {HOW}")
    if torch is not None:
        raw = {**raw, "torch": torch}
    try:
        saved = read_raw(raw)
        if "events" in raw:
            return [_from_case(name, raw, saved, device)]
        return _from_snapshot(name, raw, saved, device)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def read_run_of(recording: Recording, limit: int | None, driver: Driver | None = None) -> Run:
    """Return the run behind a recording made under `limit` (bytes; None: none or unknown).

    If torch's release is unknown, uses the newest one whose rules lead to the recorded end. Raises BadInput.
    """
    end, driver = recording.end, driver or recording.before
    releases = [end.settings.torch] if recording.release_known else [NEWEST, (2, 12), (2, 11)]
    runs = []
    for release in releases:
        settings = replace(end.settings, torch=release)
        runs.append(read_repaired(recording.events, Heap(end.segments, settings), driver, limit))
        if len(releases) > 1 and ends_as_recorded(runs[-1]):
            return runs[-1]
    return runs[0]


def _from_case(name: str, raw: Mapping[str, Any], saved: Saved, device: int | None) -> Recording:
    if device:
        raise UsageError(f"--device {device}: {name} holds the trace of one device; omit --device")
    columns = raw.get("events_columns")
    if not isinstance(raw["events"], list) or not isinstance(columns, list):
        raise BadInput("events and events_columns must be lists")
    driver = replace(saved.driver, free=size_of(raw, "driver_free_before"))
    events = parse_rows(raw["events"], columns)
    return Recording(name, 0, events, saved.heap, driver, saved.driver.limit, _conf(raw), saved.release_known)


def _conf(raw: Mapping[str, Any]) -> str:
    """Return one printable line: the file is untrusted and the text goes to a terminal."""
    settings = raw.get("allocator_settings") or raw.get("settings")
    conf = str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "") if isinstance(settings, Mapping) else ""
    return "".join(character if character.isprintable() else "?" for character in conf)


def _from_snapshot(name: str, raw: Mapping[str, Any], saved: Saved, device: int | None) -> list[Recording]:
    traces = raw.get("device_traces")
    recorded = [index for index, trace in enumerate(traces) if trace] if isinstance(traces, list) else []
    if not isinstance(traces, list) or not recorded:
        raise BadInput(f"it has no history; {HOW}")
    if device is not None and device not in recorded:
        raise UsageError(f"--device {device}: {name} holds traces of device {', '.join(map(str, recorded))}")
    return [
        Recording(
            name, index, parse_trace(traces[index]), saved.heap.on_device(index), saved.driver, saved.driver.limit,
            _conf(raw), saved.release_known,
        )
        for index in (recorded if device is None else [device])
    ]  # fmt: skip
