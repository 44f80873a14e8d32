"""Explains each out-of-memory error in the thread that has it, before it is raised: a report, a count, a log line.

The job may catch the error and continue, or be dead a moment later. So everything is written at once, is bounded in
time, size and number, and no failure in here reaches the job.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ..errors import BadInput, Unavailable
from ..model.fragmentation import Fragmentation, measure
from ..model.verdict import Cause, Facts, judge
from ..wire.error_counter import ErrorCounter
from ..wire.interrupts import call_confined
from ..wire.oom_report import Frame, OomReport, Point, headline
from ..wire.sample import Identity, Ooms, ProcessSample, Snapshot
from .sampler import driver_at
from .schedule import Clocks, TokenBucket
from .sources import Capture, DeviceReading, Fault
from .torch.api import REFUSALS

SAMPLES = 60
"""Points in a report: the latest samples of the device."""
MAX_TEXT = 1000
"""Bytes of the allocator's settings, and of each sentence."""
MAX_SENTENCES = 20
MAX_FRAMES = 40
MAX_NAME = 400
"""Bytes of a file's or a function's name, as they are written."""
REPORTS_AT_ONCE, SECONDS_PER_REPORT = 8, 5.0
"""A search for a batch size may fail thousands of times: later errors are counted without a report."""
UNEXPLAINED = Cause.UNKNOWN.value
CAUSES = tuple(cause.value for cause in Cause)
_OWN_FILES = f"{Path(__file__).parent}/"
logger = logging.getLogger("gpufrag")


class OomReporter:
    """One per agent. All but `remember` and `counted` runs in the thread that has the error.

    capture: copies the heap as it is then; None if there is none.
    keep: writes the report to disk. Raises OSError or Unavailable.
    publish: publishes the counts now and waits for it, but not for long: the process may end at once.
    last_peak: measures a device's memory peak in the step recorded last; None if there is none.
    """

    def __init__(
        self,
        capture: Callable[[], Capture | None],
        identity: Callable[[], Identity],
        keep: Callable[[OomReport], None],
        publish: Callable[[], object],
        errors: ErrorCounter,
        clocks: Clocks,
        last_peak: Callable[[int], Snapshot | None] = lambda device: None,
    ) -> None:
        self._last_peak = last_peak
        self._capture, self._identity, self._keep, self._publish = capture, identity, keep, publish
        self._errors, self._clocks = errors, clocks
        self._recent: defaultdict[int, deque[Point]] = defaultdict(lambda: deque(maxlen=SAMPLES))
        self._steps: int | None = None
        self._counts, self._number = OomCounts(), 0
        self._reports = TokenBucket(1 / SECONDS_PER_REPORT, REPORTS_AT_ONCE, clocks.monotonic())
        self._busy = threading.Lock()
        self.watching = False
        """Whether the framework reports errors."""

    def remember(self, sample: ProcessSample) -> None:
        """Keep the figures of a published sample for a later report."""
        self._steps = sample.steps
        for device in sample.devices:
            driver_free = device.driver.free if device.driver else None
            pools = (device.totals.large, device.totals.small) if device.totals else ()
            reserved, allocated, active = (
                sum(getattr(pool, name) for pool in pools) if pools else None
                for name in ("reserved", "allocated", "active")
            )
            self._recent[device.device].append(Point(sample.time, reserved, allocated, active, driver_free))

    def counted(self, sample: ProcessSample) -> ProcessSample:
        """The sample with the counts, if errors are watched for."""
        if not self.watching:
            return sample
        devices = [replace(device, ooms=self._counts.of(device.device)) for device in sample.devices]
        return replace(sample, devices=tuple(devices))

    def explain(self, fault: Fault) -> None:
        """Raises only what a signal handler of the job raises meanwhile."""
        if not self._busy.acquire(blocking=False):  # during another one, in this thread or another
            self._counts.add(fault, UNEXPLAINED, self._clocks.wall())
            return
        try:
            explained = self._reports.level(self._clocks.monotonic()) >= 1
            if explained:
                self._reports.spend(1)
            cause = self._keep_report(fault) if explained else UNEXPLAINED
            self._counts.add(fault, cause, self._clocks.wall())
        finally:
            self._busy.release()
        if explained:
            self._publish()

    def _keep_report(self, fault: Fault) -> str:
        try:
            report = self._report(fault)
            call_confined(logger.error, "gpufrag: %s", headline(report))
            try:
                self._keep(report)
            except (OSError, Unavailable) as error:
                self._errors.note("oom", error, "the error is counted, but its report is lost")
            return report.cause
        except BaseException as error:  # the job's own error is about to be raised, and nothing may replace it
            self._errors.note("oom", error, "the error is counted, but has no report")
            return UNEXPLAINED

    def _report(self, fault: Fault) -> OomReport:
        began, now = self._clocks.monotonic(), self._clocks.wall()
        frames, stack_of = current_stack()
        capture = self._capture()
        held = capture.held if capture else 0.0
        heap = None
        try:
            heap = measure_heap(capture, fault.device) if capture else None
        except (BadInput, *REFUSALS) as error:
            self._errors.note("oom", error, "the report has no figures of the heap")
        verdict = judge(facts(fault, heap))
        evidence, missing = (
            tuple(cut(text, MAX_TEXT) for text in texts[:MAX_SENTENCES])
            for texts in (verdict.evidence, verdict.missing)
        )
        self._number += 1
        return OomReport(
            identity=self._identity(),
            number=self._number,
            time=now,
            device=fault.device,
            requested=fault.requested,
            cause=verdict.cause.value,
            evidence=evidence,
            missing=missing,
            next_step=cut(verdict.next_step, MAX_TEXT),
            measured=heap.measured if heap else None,
            totals=heap.reading.totals if heap else None,
            driver=heap.reading.driver if heap else None,
            alloc_conf=cut(heap.alloc_conf, MAX_TEXT) if heap and heap.alloc_conf else None,
            steps=self._steps,
            stack=frames,
            stack_of=stack_of,
            recent=tuple(self._recent[fault.device]),
            last_peak=self._last_peak(fault.device),
            snapshot_seconds=held,
            explain_seconds=max(0.0, self._clocks.monotonic() - began - held),
        )


class MeasuredHeap(NamedTuple):
    """The device's heap at the error, and the reading that belongs to it."""

    measured: Fragmentation
    reading: DeviceReading
    expandable: bool
    segment_space: int | None
    """What an expandable segment can grow to; None without expandable segments, or if torch's default applies."""
    alloc_conf: str | None


def measure_heap(capture: Capture, device: int) -> MeasuredHeap | None:
    """None if the capture has nothing of that device. Raises BadInput, or what torch raises."""
    reading = next((reading for reading in capture.readings if reading.device == device), None)
    if reading is None:
        return None
    heap = capture.heap()
    own = heap.on_device(device)
    measured = measure(own, driver_at(own, reading, capture.limits.get(device)))
    settings = heap.settings
    bounded = settings.expandable_segments and settings.expandable_segments_reserve is not None
    space = settings.address_space(False, reading.driver.size if reading.driver else None) if bounded else None
    return MeasuredHeap(measured, reading, settings.expandable_segments, space, capture.alloc_conf)


def facts(fault: Fault, heap: MeasuredHeap | None) -> Facts:
    """What is known of the failed request; without a heap, only what torch reported."""
    if heap is None:
        return Facts(requested=fault.requested, driver_free=fault.driver_free)
    measured, driver = heap.measured, heap.reading.driver
    space = heap.segment_space
    return Facts(
        requested=fault.requested,
        free_total=measured.free_total,
        largest_allocatable=measured.largest_allocatable,
        free_cached=measured.free_cached,
        largest_free_block=measured.largest_free_block,
        reclaimable=measured.reclaimable,
        captive=measured.captive,
        headroom=measured.headroom,
        driver_free=driver.free if driver else fault.driver_free,
        size=driver.size if driver else None,
        limit=measured.limit,
        reserved=measured.reserved,
        allocated=measured.large.allocated + measured.small.allocated,
        active=measured.large.active + measured.small.active,
        segment_space=space if space is not None and fault.requested > space else None,
        expandable=heap.expandable,
    )


class OomCounts:
    """Errors by device and cause. Any thread may use it, also from within itself."""

    def __init__(self) -> None:
        self._causes: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(CAUSES, 0))
        self._last: dict[int, tuple[float, int]] = {}
        self._lock = threading.RLock()  # a finaliser of the job may run in here and request memory itself

    def add(self, fault: Fault, cause: str, time: float) -> None:
        with self._lock:
            self._causes[fault.device][cause] += 1
            self._last[fault.device] = time, fault.requested

    def of(self, device: int) -> Ooms:
        with self._lock:
            time, requested = self._last.get(device, (None, None))
            return Ooms(dict(self._causes[device]), time, requested)


def current_stack() -> tuple[tuple[Frame, ...], str]:
    """The Python stack, innermost first, and whose it is (OomReport.stack_of).

    The calling thread's; the main thread's if this one runs only the agent's code, as autograd's threads do.
    """
    frames = _frames(sys._getframe())
    main = threading.main_thread().ident
    if frames or threading.get_ident() == main:
        return frames, "thread"
    return _frames(sys._current_frames().get(main or 0)), "main"


def cut(text: str, size: int = MAX_NAME) -> str:
    """The end of `text` that takes at most `size` bytes in JSON, where a character can take twelve."""
    if text.isascii() and text.isprintable() and len(text) <= size // 2:  # a quote takes two
        return text
    kept: list[str] = []
    for character in reversed(text):
        written = character.encode("utf-8", "replace").decode()
        size -= len(json.dumps(written)) - 2
        if size < 0:
            break
        kept.append(written)
    return "".join(reversed(kept))


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    found: list[Frame] = []
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FILES):
            name = getattr(code, "co_qualname", code.co_name)  # Python 3.11
            found.append(Frame(cut(code.co_filename), max(0, frame.f_lineno or 0), cut(name)))
        frame = frame.f_back
    return tuple(found)
