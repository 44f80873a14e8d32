"""Reads the source, measures what it copied, and says it all as one ProcessSample. Owns no thread and no file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..model.fragmentation import measure
from ..model.recurring import Recurrence, observe
from ..wire.error_counter import ErrorCounter
from ..wire.sample import AgentHealth, DeviceSample, Identity, ProcessSample, Snapshot
from .clocks import Clocks
from .driver_then import driver_at
from .leak_watch import LeakWatch
from .moments import current
from .peaks import Peaks
from .schedule import Schedule
from .settings import AgentSettings
from .sources import Capture, DeviceFacts, DeviceReading, Source, TellsLevel, TellsLive
from .steps import Steps

LONG_READ = 0.001
"""Seconds. The cheap figures of a device take microseconds: above this they waited for the allocator's lock."""


class Taken(NamedTuple):
    """A copy that waits to be measured: when and at which moment it was taken, and how long that held the process."""

    capture: Capture
    time: float
    at: str
    duration: float


@dataclass
class Device:
    """What is known of one device between two snapshots."""

    facts: DeviceFacts
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    recurrence: Recurrence = field(default_factory=Recurrence)
    limit: int | None = None


class Sampler:
    """`on_step` runs in the trainer's threads and only copies; everything else runs in the agent's thread."""

    def __init__(
        self, source: Source, settings: AgentSettings, trouble: ErrorCounter, clocks: Clocks | None = None
    ) -> None:
        self._source, self._settings, self._trouble = source, settings, trouble
        self._clocks = clocks or Clocks()
        self.schedule = Schedule(settings, self._clocks.wall())
        self._steps: Steps | None = None
        self._taken: deque[Taken] = deque()
        self._readings: tuple[DeviceReading, ...] = ()
        self._devices: dict[int, Device] = {}
        self._alloc_conf: str | None = None
        self._stalls = {"snapshot": 0.0, "stats": 0.0, "wait": 0.0, "measure": 0.0}
        self._unpaid = 0.0
        self._read_at = self._clocks.monotonic()
        self._peaks = (
            Peaks(source, settings, self._clocks, self._take_peak, self._owe)
            if isinstance(source, TellsLevel)
            else None
        )
        self._peak_is_next = False
        self._leaks = (
            LeakWatch(source, settings, self._clocks, self._add_stall) if isinstance(source, TellsLive) else None
        )

    @property
    def following(self) -> bool:
        """Whether a step is being followed: no snapshot by the timer meanwhile."""
        return self._peaks is not None and self._peaks.underway

    def watch_steps(self, wake: Callable[[], None]) -> None:
        """Take snapshots at step boundaries and peaks where the framework tells them; `wake` is called after each.

        The copy at a boundary is made in the trainer's own thread: it holds the interpreter in any thread, and in
        another one it would come some milliseconds later, in the midst of the next step.
        """
        steps = Steps()

        def on_step(optimizer: object) -> None:
            try:
                if steps.note(optimizer) and self._at_boundary(steps.count):
                    wake()
            except Exception as error:  # the trainer's stack is below: nothing may reach it
                self._trouble.note("step", error, "snapshots come by the timer if this goes on")

        if self._source.watch_steps(on_step):
            self._steps = steps

    def _at_boundary(self, step: int) -> bool:
        """True where the agent's thread has something to do now."""
        now = self._clocks.wall()
        if self._peaks is not None:
            self._peaks.boundary()
        if at_once := self._leaks is not None and self._leaks.boundary(step):
            self._read_at = self._clocks.monotonic()
        return self._snapshot_is_due(now) or at_once

    def _snapshot_is_due(self, now: float) -> bool:
        """True where one was taken, or a step is followed from here on."""
        if not self.schedule.at_step(now) or self._source.graph_underway():
            return False
        if self._peaks is None or not self._peak_is_next:
            self._peak_is_next = True
            self.take("boundary")
        else:
            self._begin_to_follow(self._peaks, now)
        return True

    def _begin_to_follow(self, peaks: Peaks, now: float) -> None:
        begun = False
        try:
            device = self._fullest()
            begun = device is not None and peaks.begin(device)
        finally:  # after an error too, or it would be tried again at each step
            if not begun:
                self._peak_is_next = False
                self.schedule.leave_to_chance(now)

    def _fullest(self) -> int | None:
        peaks = {reading.device: reading.totals.peak_active for reading in self._readings if reading.totals}
        return max(peaks, key=lambda device: peaks[device], default=None)

    def _take_peak(self) -> None:
        self._peak_is_next = False
        self.take("peak")

    def follow(self, interrupted: Callable[[], bool], rest: Callable[[float], object]) -> None:
        """Follow the step that is underway, if one is; until it ends, `interrupted`, or figures are to be read."""
        if self._peaks is not None:
            self._peaks.follow(lambda: interrupted() or self.read_in() <= 0, rest)

    def take(self, at: str) -> None:
        """Copy the heap in this thread, now. It is measured by the next `digest`."""
        now, began = self._clocks.wall(), self._clocks.monotonic()
        self.schedule.taken(now, 0.0, recording=False)  # nobody else starts one meanwhile
        capture = self._source.capture()
        if capture is None:
            return
        # the trainer's thread is held up by all of this, others only where the interpreter is kept from them
        held = self._clocks.monotonic() - began if at == "boundary" else capture.held
        waited = min(capture.waited, held)
        self._stalls["snapshot"] += held - waited
        self._stalls["wait"] += waited
        self._taken.append(Taken(capture, now, at, held))

    def digest(self) -> None:
        """Measure what was taken since the last call, and plan the next snapshot by what this one cost in all."""
        while self._taken:
            self._digest(self._taken.popleft())

    def _digest(self, taken: Taken) -> None:
        began = self._clocks.cpu()
        try:
            self._measure(taken)
        finally:
            spent = self._clocks.cpu() - began  # the trainer had to share the interpreter meanwhile
            self._stalls["measure"] += spent
            unpaid, self._unpaid = self._unpaid, 0.0
            self.schedule.taken(self._clocks.wall(), taken.duration + spent + unpaid, self._source.recording())

    def _owe(self, cause: str, seconds: float) -> None:
        """What following a step cost is paid for with the next snapshot."""
        self._add_stall(cause, seconds)
        self._unpaid += seconds

    def _add_stall(self, cause: str, seconds: float) -> None:
        self._stalls[cause] += seconds

    def read(self) -> None:
        """The cheap figures; after a reading that had to wait, the next one is put off by what that wait allows."""
        self._read_at = self._clocks.monotonic() + self._settings.publish_every  # even where this one fails
        retries, self._readings = self._retries(), tuple(self._source.read())
        if retries is not None and (self._retries() or 0) > retries:  # the allocator had to flush: look soon
            self._peak_is_next = self._peaks is not None
            self.schedule.hasten(self._clocks.wall())
        if self._leaks is not None:
            self._leaks.second(reading.device for reading in self._readings)
        held = [reading.held for reading in self._readings]
        for seconds in held:
            self._stalls["wait" if seconds > LONG_READ else "stats"] += seconds
        self._read_at += max(0.0, sum(held) / self._settings.budget - self._settings.publish_every)

    def _retries(self) -> int | None:
        """Of all devices; None before the first reading."""
        counts = [reading.totals.counters.alloc_retries for reading in self._readings if reading.totals]
        return sum(count or 0 for count in counts) if counts else None

    def read_in(self) -> float:
        """Seconds until the cheap figures are to be read again."""
        return self._read_at - self._clocks.monotonic()

    def sample(self, identity: Identity) -> ProcessSample:
        """All that is known now. A device that was not in the last reading is left out: it has gone."""
        return ProcessSample(
            identity=replace(
                identity, framework=self._source.framework, framework_version=self._source.framework_version
            ),
            time=self._clocks.wall(),
            devices=tuple(self._device_sample(reading) for reading in self._readings),
            steps=self._steps.count if self._steps else None,
            peak_method=self._peaks.method if self._peaks else None,
            health=AgentHealth(dict(self._stalls), self._trouble.counts),
        )

    def _measure(self, taken: Taken) -> None:
        heap = taken.capture.heap()
        self._alloc_conf = taken.capture.alloc_conf
        for reading in taken.capture.readings:
            own = heap.on_device(reading.device)
            device = self._known(reading.device)
            device.limit = taken.capture.limits.get(reading.device)
            measured = measure(own, driver_at(own, reading, device.limit))
            device.snapshots[taken.at] = Snapshot(taken.time, taken.at, taken.duration, measured)
            device.recurrence = observe(device.recurrence, own, taken.time)
        if self._leaks is not None and taken.capture.sites is not None:
            self._leaks.compare(taken.at, taken.capture.sites)

    def _window(self) -> float:
        """Seconds in which a snapshot is to be expected: not more than one comes in a step."""
        return max(self.schedule.window, self._peaks.step_seconds if self._peaks else 0.0)

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
            largest_recurring=device.recurrence.largest(self._clocks.wall()),
            snapshots=current(device.snapshots.values(), self._clocks.wall(), self._window()),
        )
