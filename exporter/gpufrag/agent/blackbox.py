"""Explains each out-of-memory error in the thread that has it, before it is raised: a report, the counts, a line.

The job may catch the error and go on, or be dead a moment later. So all is written down at once, it is bounded in
time, size and number, and nothing that goes wrong in here reaches the job.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..errors import BadInput, Unavailable
from ..model.verdict import Cause, judge
from ..wire.error_counter import ErrorCounter
from ..wire.oom_report import OomReport, Point, headline
from ..wire.sample import DeviceSample, Identity, ProcessSample
from . import stack
from .clocks import Clocks
from .oom_counts import Allowance, OomCounts
from .oom_look import Look, facts, look
from .sources import Capture, Fault
from .torch.api import REFUSALS

SAMPLES = 60
"""Of each device, so many of the last samples are in a report."""
MOST_TEXT = 1000
"""Bytes of the allocator's settings, and of each sentence."""
MOST_SENTENCES = 20
UNEXPLAINED = Cause.UNKNOWN.value
logger = logging.getLogger("gpufrag")


class BlackBox:
    """One for an agent. All but `remember` and `counted` runs in the thread that has the error.

    capture: a copy of the heap as it is just then; None where there is none.
    keep: writes the report down for good. Raises OSError or Unavailable.
    tell: has the counts published now, for the process may end at once; waits for it, but not for long.
    """

    def __init__(
        self,
        capture: Callable[[], Capture | None],
        identity: Callable[[], Identity],
        keep: Callable[[OomReport], None],
        tell: Callable[[], None],
        trouble: ErrorCounter,
        clocks: Clocks,
    ) -> None:
        self._capture, self._identity, self._keep, self._tell = capture, identity, keep, tell
        self._trouble, self._clocks = trouble, clocks
        self._recent: defaultdict[int, deque[Point]] = defaultdict(lambda: deque(maxlen=SAMPLES))
        self._steps: int | None = None
        self._counts, self._allowance, self._number = OomCounts(), Allowance(clocks.monotonic), 0
        self._busy = threading.Lock()
        self.watching = False
        """Whether the framework tells of errors."""

    def remember(self, sample: ProcessSample) -> None:
        """Called with each sample."""
        self._steps = sample.steps
        for device in sample.devices:
            self._recent[device.device].append(_point(sample.time, device))

    def counted(self, sample: ProcessSample) -> ProcessSample:
        """The sample with the counts in it, if any error would have been counted."""
        if not self.watching:
            return sample
        devices = [replace(device, ooms=self._counts.of(device.device)) for device in sample.devices]
        return replace(sample, devices=tuple(devices))

    def explain(self, fault: Fault) -> None:
        """Raises nothing but what a signal's handler of the job raises meanwhile."""
        if not self._busy.acquire(blocking=False):  # in the midst of another one, in this thread or another
            self._count(fault, UNEXPLAINED)
            return
        try:
            explained = self._allowance.take()
            self._count(fault, self._cause(fault) if explained else UNEXPLAINED)
        finally:
            self._busy.release()
        if explained:
            self._tell()

    def _count(self, fault: Fault, cause: str) -> None:
        self._counts.add(fault.device, cause, self._clocks.wall(), fault.requested)

    def _cause(self, fault: Fault) -> str:
        """Once it is written down and told."""
        try:
            return self._explained(fault)
        except Exception as error:  # the job's own error is about to be raised, and nothing may take its place
            self._trouble.note("oom", error, "this error is counted without a report")
            return UNEXPLAINED

    def _explained(self, fault: Fault) -> str:
        report = self._report(fault)
        with suppress(Exception):  # the program's own log handlers run below
            logger.error("gpufrag: %s", headline(report))
        try:
            self._keep(report)
        except (OSError, Unavailable) as error:
            self._trouble.note("oom", error, "its report is lost, its count is not")
        return report.cause

    def _report(self, fault: Fault) -> OomReport:
        began, now = self._clocks.monotonic(), self._clocks.wall()
        trace = stack.here()
        capture = self._capture()
        held = capture.held if capture else 0.0
        seen = self._look(capture, fault.device)
        verdict = judge(facts(fault, seen))
        self._number += 1
        return OomReport(
            identity=self._identity(),
            number=self._number,
            time=now,
            device=fault.device,
            requested=fault.requested,
            cause=verdict.cause.value,
            evidence=_sentences(verdict.evidence),
            missing=_sentences(verdict.missing),
            next_step=stack.clean(verdict.next_step, MOST_TEXT),
            measured=seen.measured if seen else None,
            totals=seen.reading.totals if seen else None,
            driver=seen.reading.driver if seen else None,
            alloc_conf=stack.clean(seen.alloc_conf, MOST_TEXT) if seen and seen.alloc_conf else None,
            steps=self._steps,
            stack=trace.frames,
            stack_of=trace.of,
            recent=tuple(self._recent[fault.device]),
            snapshot_seconds=held,
            explain_seconds=max(0.0, self._clocks.monotonic() - began - held),
        )

    def _look(self, capture: Capture | None, device: int) -> Look | None:
        try:
            return look(capture, device) if capture else None
        except (BadInput, *REFUSALS) as error:
            self._trouble.note("oom", error, "the report is without figures of the heap")
            return None


def _sentences(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(stack.clean(text, MOST_TEXT) for text in texts[:MOST_SENTENCES])


def _point(time: float, device: DeviceSample) -> Point:
    driver_free = device.driver.free if device.driver else None
    if device.totals is None:
        return Point(time, driver_free=driver_free)
    large, small = device.totals.large, device.totals.small
    return Point(
        time,
        reserved=large.reserved + small.reserved,
        allocated=large.allocated + small.allocated,
        active=large.active + small.active,
        driver_free=driver_free,
    )
