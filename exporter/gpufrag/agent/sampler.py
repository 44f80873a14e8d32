"""Reads the source and packs what it copied into recordings. Owns no thread and no file.

The sidecar measures the recordings; `measured` does so in a process that serves its own metrics.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import BadInput
from ..model.allocatable import Driver
from ..model.heap import Heap
from ..wire import recording as recording_file
from ..wire.error_counter import ErrorCounter
from ..wire.folder import HEAP_SUFFIX, RECORDING_SUFFIX
from ..wire.measuring import Measured, current, measure_recording
from ..wire.recording import DeviceRecording, Recording
from ..wire.sample import AgentHealth, DeviceSample, Identity, ProcessSample, Snapshot
from .leak_watch import LeakWatch
from .schedule import Clocks, Schedule
from .settings import AgentSettings
from .sources import Capture, Defragments, DeviceFacts, DeviceReading, ReportsLive, Source
from .step_recorder import INCONSISTENT, RECORDED, StepRecorder
from .step_traces import StepTraces
from .steps import StepCounter

LONG_READING = 0.001
"""Seconds. The cheap figures of a device take microseconds; a longer reading waited for the allocator's lock."""


class Taken(NamedTuple):
    """A copy to be packed: when and at which moment it was taken, and for how long the process was held up."""

    capture: Capture
    time: float
    at: str
    duration: float


class LastStep(NamedTuple):
    """The step recorded last: its key among the files that are not measured yet, its time, and its file."""

    key: tuple[str, bool]
    time: float
    file: bytes


@dataclass
class Device:
    """What is known of one device between two snapshots."""

    facts: DeviceFacts
    limit: int | None = None
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    """By moment; empty unless this process measures its recordings itself."""
    largest_request: int | None = None
    """Of the step whose peak is in `snapshots`."""


class Sampler:
    """Step hooks run in the program's threads and only copy; everything else runs in the agent's thread."""

    def __init__(
        self, source: Source, settings: AgentSettings, errors: ErrorCounter, clocks: Clocks | None = None
    ) -> None:
        self._source, self._settings, self._errors = source, settings, errors
        self._clocks = clocks or Clocks()
        self.schedule = Schedule(settings, self._clocks.wall())
        self.recorder = StepRecorder(source, self._clocks)
        self.traces = StepTraces(source)
        self._mover = source if isinstance(source, Defragments) else None
        self._steps: StepCounter | None = None
        self._step_seconds, self._boundary_at = 0.0, 0.0
        self._taken: deque[Taken] = deque()
        self._files: dict[str, bytes] = {}
        self._unmeasured: dict[tuple[str, bool], bytes] = {}
        """Files by moment and whether a step was recorded, oldest first."""
        self._last_step: LastStep | None = None
        self._measuring = threading.Lock()
        self._readings: tuple[DeviceReading, ...] = ()
        self._devices: dict[int, Device] = {}
        self._alloc_conf: str | None = None
        self._stalls = {"snapshot": 0.0, "stats": 0.0, "wait": 0.0, "measure": 0.0}
        self._extra_cost = 0.0
        """Seconds that the next window has to pay for in addition to its copy."""
        self._read_at = self._clocks.monotonic()
        self._leaks = (
            LeakWatch(source, settings, self._clocks, self._stalls) if isinstance(source, ReportsLive) else None
        )

    def watch_steps(self, wake: Callable[[], None], at_boundary: Callable[[int], None] = lambda step: None) -> None:
        """Record steps if the framework reports them; `wake` is called when there is something to measure.

        `at_boundary(step)` is called at the end of each step, and may defragment.

        The copy at a boundary is made in the program's own thread: it holds the interpreter in any thread, and in
        another one it would come some milliseconds later, within the next step.
        """
        steps = StepCounter()

        def on_step(optimizer: object) -> None:
            try:
                if not steps.note(optimizer):
                    return
                if self._at_boundary(steps.count):
                    wake()
                at_boundary(steps.count)
            except BaseException as error:  # the program's stack is below: nothing of ours may reach it
                self._errors.note("step", error, "if this continues, the agent takes snapshots by timer")

        if self._source.watch_steps(on_step):
            self._steps = steps

    def _at_boundary(self, step: int) -> bool:
        """Return whether the agent's thread has something to do now."""
        now, at = self._clocks.wall(), self._clocks.monotonic()
        self._step_seconds = at - self._boundary_at if self._boundary_at else 0.0
        self._boundary_at = at
        if leaks_due := self._leaks is not None and self._leaks.boundary(step):
            self._read_at = self._clocks.monotonic()
        return self._record_or_take(now) or leaks_due

    def _record_or_take(self, now: float) -> bool:
        """Return whether a snapshot was taken. A recording begins at one boundary and is read at the next."""
        due = self.schedule.at_step(now)
        if self.traces.pending and not self.recorder.underway:
            if not self._source.graph_underway():
                self.traces.boundary()
            return False
        if self._leaks is not None and self._leaks.naming and not self.recorder.underway:
            if not self._source.graph_underway():
                self._leaks.name_step()
            return False
        if not (due or self.recorder.underway) or self._source.graph_underway():
            return False
        if not self.recorder.underway and self._start_recording(lambda: self.recorder.start_step(self._step_seconds)):
            return False
        self.take("boundary", finish=True)
        return True

    def _start_recording(self, start: Callable[[], bool]) -> bool:
        began = self._clocks.monotonic()
        try:
            return start()
        finally:
            took = self._clocks.monotonic() - began
            self._stalls["snapshot"] += took
            self._extra_cost += took

    def at_timer(self) -> None:
        """Called when `action_in` has passed: end a recording that is overdue, or begin one if none came by steps."""
        if self.recorder.underway:
            if self.recorder.time_left <= 0:
                self.take("timer", finish=True)
        elif self.traces.pending or not self.schedule.at_timer(self._clocks.wall()):
            return
        elif not self._start_recording(self.recorder.start_slice):
            self.take("timer")

    def action_in(self) -> float:
        """Seconds until `at_timer` has something to do."""
        wall = self._clocks.wall()
        return self.recorder.time_left if self.recorder.underway else self.schedule.timer(wall) - wall

    def take(self, at: str, finish: bool = False) -> None:
        """Copy the heap in this thread, now; `finish`: with the recording that is underway. `digest` packs it."""
        now, began = self._clocks.wall(), self._clocks.monotonic()
        self.schedule.taken(now, 0.0, history_in_use=False)  # no other thread begins one meanwhile
        capture = (self.recorder.finish() if finish else None) or self._source.capture()
        if capture is None:
            return
        # all of this holds up the program's own thread; its other threads only while they cannot run Python
        held = self._clocks.monotonic() - began if at == "boundary" else capture.held
        waited = min(capture.waited, held)
        self._stalls["snapshot"] += held - waited
        self._stalls["wait"] += waited
        self._taken.append(Taken(capture, now, at, held))

    def take_defragmented(self) -> None:
        """In the program's thread: drop the recording that contains the moves, and show the new heap."""
        self.recorder.finish()
        self.take("boundary")

    def close(self) -> None:
        """End a recording that is underway, in the process that began it."""
        self.recorder.finish()
        if self._leaks is not None:
            self._leaks.stop()

    def digest(self) -> None:
        """Pack what was taken since the last call, and plan the next window by the total cost of this one."""
        while self._taken:
            taken = self._taken.popleft()
            began = self._clocks.cpu()
            try:
                self._pack(taken)
            finally:
                spent = self._clocks.cpu() - began  # the program had to share the interpreter meanwhile
                self._stalls["measure"] += spent
                more, self._extra_cost = self._extra_cost, 0.0
                cost = taken.duration + spent + more
                self.schedule.taken(self._clocks.wall(), cost, self._source.history_in_use())

    def read(self) -> None:
        """Read the cheap figures. After a reading that had to wait, the next one comes later, within the budget."""
        self._read_at = self._clocks.monotonic() + self._settings.publish_every  # even if this one fails
        retries, self._readings = self._retries(), tuple(self._source.read())
        if retries is not None and (self._retries() or 0) > retries:  # the allocator flushed its cache: look soon
            self.schedule.hasten(self._clocks.wall())
        if self._leaks is not None:
            self._leaks.second(reading.device for reading in self._readings)
        held = [reading.held for reading in self._readings]
        for seconds in held:
            self._stalls["wait" if seconds > LONG_READING else "stats"] += seconds
        self._read_at += max(0.0, sum(held) / self._settings.budget - self._settings.publish_every)

    def _retries(self) -> int | None:
        """Of all devices; None before the first reading."""
        counts = [reading.totals.counters.alloc_retries for reading in self._readings if reading.totals]
        return sum(count or 0 for count in counts) if counts else None

    def read_in(self) -> float:
        return self._read_at - self._clocks.monotonic()

    def sample(self, identity: Identity) -> ProcessSample:
        """All that is known now. A device that was not in the last reading is left out."""
        return ProcessSample(
            identity=replace(
                identity, framework=self._source.framework, framework_version=self._source.framework_version
            ),
            time=self._clocks.wall(),
            devices=tuple(self._device_sample(reading) for reading in self._readings),
            steps=self._steps.count if self._steps else None,
            health=AgentHealth(dict(self._stalls), self._errors.counts, dict(self.recorder.results)),
        )

    def _pack(self, taken: Taken) -> None:
        capture, heap = taken.capture, taken.capture.heap()
        self._alloc_conf = capture.alloc_conf
        events = None if capture.events is None else capture.events()
        devices = []
        for reading in capture.readings:
            device, end = self._known(reading.device), heap.on_device(reading.device)
            device.limit = capture.limits.get(reading.device)
            of_device = None if events is None else events.get(reading.device)
            before = capture.active_before.get(reading.device)
            driver = driver_at(end, reading, device.limit)
            devices.append(DeviceRecording(reading.device, end, of_device, driver, before))
        recording = Recording(
            taken.time, self._step_seconds, self._source.framework_version, tuple(devices), taken.at, taken.duration,
            self._window(),
        )  # fmt: skip
        file = recording_file.encode(recording)
        # in a file of its own, so that a snapshot without events replaces no step that was not measured yet
        self._files[HEAP_SUFFIX if events is None else RECORDING_SUFFIX] = file
        self._unmeasured.pop(key := (taken.at, events is not None), None)
        self._unmeasured[key] = file
        if events is not None:
            self.recorder.note(RECORDED)
            self._last_step = LastStep(key, taken.time, file)
        if self._leaks is not None and capture.sites is not None:
            self._leaks.compare(taken.at, capture.sites)

    def take_files(self) -> dict[str, bytes]:
        """The latest step recording and the latest snapshot without events, as files by suffix, each once."""
        files, self._files = self._files, {}
        return files

    def measured(self, sample: ProcessSample) -> ProcessSample:
        """The sample with the snapshots that a sidecar would add. Each recording is measured once, in this thread."""
        with self._measuring:
            for key in list(self._unmeasured):
                if (file := self._unmeasured.pop(key, None)) is not None:  # the agent's thread replaces them
                    self._measure(file)
            devices = [self._with_snapshots(device) for device in sample.devices]
        return replace(sample, devices=tuple(devices))

    def last_peak(self, device: int) -> Snapshot | None:
        """The device at the peak of the step recorded last; None if there is none or another thread measures now."""
        step = self._last_step
        if step is None or not self._measuring.acquire(blocking=False):
            return None
        try:
            if self._unmeasured.get(step.key) is step.file:
                self._measure(self._unmeasured.pop(step.key))
            peak = self._known(device).snapshots.get("peak")
            return peak if peak is not None and peak.time == step.time else None
        finally:
            self._measuring.release()

    def _measure(self, file: bytes) -> None:
        began = self._clocks.cpu()
        try:
            for found in measure_recording(recording_file.decode(file)):
                self._add(found)
        except BadInput as error:
            self._errors.note("measure", error, "the figures of this recording are absent")
        finally:
            self._stalls["measure"] += (spent := self._clocks.cpu() - began)
            self._extra_cost += spent

    def _add(self, found: Measured) -> None:
        device = self._known(found.device)
        device.snapshots |= {snapshot.at: snapshot for snapshot in found.snapshots}
        if found.step is not None:
            device.largest_request = found.step.largest_request or None
        if found.inconsistent:
            self.recorder.note(INCONSISTENT)

    def _with_snapshots(self, sample: DeviceSample) -> DeviceSample:
        device = self._devices.get(sample.device)
        if device is None or sample.framework is not None:
            return sample
        snapshots = current(device.snapshots.values(), self._clocks.wall(), self._window())
        has_peak = any(snapshot.at == "peak" for snapshot in snapshots)
        return replace(sample, snapshots=snapshots, largest_recurring=device.largest_request if has_peak else None)

    def _window(self) -> float:
        """Seconds within which to expect a snapshot: at most one per step."""
        return max(self.schedule.window, 2 * self._step_seconds)

    def _known(self, device: int) -> Device:
        if device not in self._devices:
            self._devices[device] = Device(self._source.facts(device))
        return self._devices[device]

    def _device_sample(self, reading: DeviceReading) -> DeviceSample:
        device = self._known(reading.device)
        facts = device.facts
        return DeviceSample(
            device=reading.device,
            backend=facts.backend,
            uuid=facts.uuid,
            mig_uuid=facts.mig_uuid,
            alloc_conf=self._alloc_conf,
            driver_version=facts.driver_version,
            limit=device.limit if reading.limit is None else reading.limit,
            totals=reading.totals,
            sums=reading.sums,
            leak=self._leaks.leak(reading.device) if self._leaks is not None else None,
            driver=reading.driver,
            defragmentations=self._mover.defragmented(reading.device) if self._mover else None,
        )


def driver_at(heap: Heap, reading: DeviceReading, limit: int | None) -> Driver:
    """The driver as it was when the process held `heap`.

    The reading comes later; what the process itself took from the driver or returned to it in between is undone.
    """
    if reading.driver is None:
        return Driver(limit=limit)
    free, size = reading.driver.free, reading.driver.size
    if reading.totals is not None:
        reserved = reading.totals.large.reserved + reading.totals.small.reserved
        free += reserved - sum(segment.size for segment in heap.segments)
    return Driver(min(max(0, free), size), size, limit)
