"""Records one step of the program at a time: what the allocator did between two step boundaries.

In a process without steps it records a slice instead: the last half second, or less if that has too many events.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import replace

from .schedule import Clocks
from .sources import Capture, RecordsEvents, Source

MAX_EVENTS = 100_000
"""Reading that many takes about 50 ms, and torch keeps them in about 15 MB of host memory."""
LONGEST_STEP, SHORTEST_LIMIT, STEP_LENGTHS = 300.0, 30.0, 4.0
"""A recording ends after this many lengths of the last step, but within these seconds: the program does something
else then."""
SLICE = 0.5
"""Seconds."""
SLICE_EVENTS = 20_000
"""A slice has no beginning of its own: torch keeps its latest events, as many as an ordinary step has."""
MAX_SKIPPED = 64
"""Windows to skip after steps that were too long, at most; each further one doubles the number."""

RECORDED = "recorded"
HISTORY_IN_USE = "history_in_use"
"""The program, or another tool in it, records the allocator's history itself, and that history is too long to read."""
INTERRUPTED = "interrupted"
"""The program started or stopped the history while a step was recorded."""
TOO_MANY_EVENTS = "too_many_events"
TOO_LONG = "too_long"
INCONSISTENT = "inconsistent"
"""The events do not lead to the heap: another thread allocated while they were read."""
NOT_YET = ""
"""The device is not in use yet; this is not counted."""
UNSUPPORTED = "unsupported"
"""This torch, or its allocator, has no event history."""


class StepRecorder:
    """Any thread may call it: the program's at step boundaries, the agent's for slices and deadlines."""

    def __init__(self, source: Source, clocks: Clocks) -> None:
        self._source = source if isinstance(source, RecordsEvents) else None
        self._clocks = clocks
        self._lock = threading.RLock()  # a signal handler of the program may stop the agent while this code runs
        self._deadline: float | None = None
        self._is_slice = False
        self._skip = self._skipped = 0
        self.results: Counter[str] = Counter()
        """Recordings by outcome."""

    @property
    def underway(self) -> bool:
        return self._deadline is not None

    @property
    def time_left(self) -> float:
        """Seconds until the recording is overdue; infinite without one."""
        deadline = self._deadline
        return math.inf if deadline is None else deadline - self._clocks.monotonic()

    def start_step(self, last_step: float) -> bool:
        """Record until the next boundary; `last_step` is the length of the last step in seconds.

        Returns False if that is not possible now; `results` has the reason.
        """
        longest = min(LONGEST_STEP, max(SHORTEST_LIMIT, STEP_LENGTHS * last_step))
        return self._start(longest, MAX_EVENTS, is_slice=False)

    def start_slice(self) -> bool:
        """Record for SLICE seconds. Returns False if that is not possible now; `results` has the reason."""
        return self._start(SLICE, SLICE_EVENTS, is_slice=True)

    def finish(self) -> Capture | None:
        """End the recording; return the heap, with its events if none was lost. None if there is none."""
        with self._lock:
            if self._source is None or not self.underway:
                return None
            late = self.time_left <= 0 and not self._is_slice
            self._deadline = None
            count = self._source.recorded_events()
            failure = INTERRUPTED if count is None else TOO_LONG if late else None
            if count is not None and count >= MAX_EVENTS and not self._is_slice:
                failure = TOO_MANY_EVENTS
            capture = self._source.finish_recording(read=failure is None)
            if capture is not None and not capture.complete and not self._is_slice:
                failure, capture = TOO_MANY_EVENTS, replace(capture, events=None)
            elif capture is not None and capture.events is None:
                failure = HISTORY_IN_USE if self._source.history_in_use() else INTERRUPTED
            if failure is not None:
                self.note(failure)
            return capture

    def note(self, result: str) -> None:
        """Count a recording that has been measured, or turned out to be unusable."""
        self.results[result] += 1
        if result in (TOO_MANY_EVENTS, TOO_LONG):
            self._skip, self._skipped = min(MAX_SKIPPED, 2 * self._skip + 1), 0
        elif result == RECORDED:
            self._skip = 0

    def _start(self, seconds: float, max_events: int, is_slice: bool) -> bool:
        if self._source is None or not self._lock.acquire(blocking=False):
            return False
        try:
            self._skipped += 1
            if self.underway or self._skipped <= self._skip:
                return False
            if (refusal := self._source.start_recording(max_events)) is not None:
                if refusal != NOT_YET:
                    self.note(refusal)
                return False
            self._is_slice, self._deadline = is_slice, self._clocks.monotonic() + seconds
            return True
        finally:
            self._lock.release()
