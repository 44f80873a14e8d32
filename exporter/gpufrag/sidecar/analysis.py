"""Analyses step recordings, each in its own low-priority process: how much memory a rank's step needs.

The process reads a recording from standard input and writes a line of JSON to standard output. A recording that is
broken or takes too long affects only that process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from ..errors import GpufragError
from ..logs import event
from ..metrics.view import StepView
from ..model.needs import Needs, step_needs
from ..model.step import read_step
from ..wire import codec, recording
from ..wire.codec import Most
from ..wire.folder import FileName, open_plain

log = logging.getLogger(__name__)

MEMORY_LIMIT = 4 << 30
"""Address space of the worker. A recording of 100,000 events takes about 300 MB."""
NICENESS = 19
ANALYSED, FAILED, TIMED_OUT, SKIPPED = "analysed", "failed", "timed_out", "skipped"
RESULTS = (ANALYSED, FAILED, TIMED_OUT, SKIPPED)
_WORKER = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; main()"
"""Not `python -m`, which would import modules from the working directory: others may write to it."""


@dataclass(frozen=True)
class _Answer:
    """What the worker writes: the steps, or why there is none."""

    cpu_seconds: float
    steps: Annotated[tuple[StepView, ...], Most(recording.DEVICES)] = ()
    error: str | None = None


@dataclass
class _Rank:
    """What is known of one rank's recordings. `due` is on the monotonic clock."""

    due: float = 0.0
    seen: int = 0  # modification time in ns of the newest recording
    analysed: int = 0
    steps: tuple[StepView, ...] = ()


class Analyzer:
    """Analyses the newest recording of each rank, one at a time, within a share of a core for each rank."""

    def __init__(
        self, folder: Path, cpu_share: float, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._share, self._timeout, self._clock = folder, cpu_share, timeout, clock
        self._ranks: dict[FileName, _Rank] = {}
        self._condition = threading.Condition()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self.counts: Counter[str] = Counter()
        """Recordings by result: one of RESULTS."""
        self._thread = threading.Thread(target=self._run, name="gpufrag-analysis", daemon=True)
        self._thread.start()

    def look(self, names: Iterable[FileName]) -> Mapping[FileName, tuple[StepView, ...]]:
        """Return the latest steps of these ranks, and have newer recordings analysed. Does not wait."""
        names = set(names)
        with self._condition:
            self._ranks = {name: self._ranks.get(name) or _Rank() for name in names}
            for name, rank in self._ranks.items():
                with suppress(OSError):
                    changed = (self._folder / name.recording).lstat().st_mtime_ns
                    if changed != rank.seen:
                        self.counts[SKIPPED] += bool(rank.seen) and rank.seen != rank.analysed
                        rank.seen = changed
            self._condition.notify()
            return {name: rank.steps for name, rank in self._ranks.items() if rank.steps}

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
            if self._process is not None:
                self._process.kill()
        self._thread.join(timeout=self._timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._closed and (found := self._next()) is None:
                    self._condition.wait(timeout=1.0)
                if self._closed:
                    return
                assert found is not None
                name, rank = found
                changed = rank.analysed = rank.seen
            result, answer = self._analyse(name)
            with self._condition:
                self.counts[result] += 1
                rank.due = self._clock() + (answer.cpu_seconds if answer else self._timeout) / self._share
                rank.steps = answer.steps if answer and result == ANALYSED else ()
                rank.analysed = changed

    def _next(self) -> tuple[FileName, _Rank] | None:
        """The rank that has waited longest among those with a new recording and budget."""
        now = self._clock()
        due = [(rank.due, name) for name, rank in self._ranks.items() if rank.seen != rank.analysed and rank.due <= now]
        if not due:
            return None
        _, name = min(due)
        return name, self._ranks[name]

    def _analyse(self, name: FileName) -> tuple[str, _Answer | None]:
        try:
            with open_plain(self._folder / name.recording) as file:
                data = file.read(recording.MAX_BYTES + 1)
            answer = self._ask(data)
        except subprocess.TimeoutExpired:
            event(log, logging.WARNING, "step analysis timed out", recording=name.recording, seconds=self._timeout)
            return TIMED_OUT, None
        except (OSError, ValueError, codec.Misfit) as error:
            if not self._closed:
                event(log, logging.WARNING, "step analysis failed", recording=name.recording, reason=error)
            return FAILED, None
        if answer.error is not None:
            event(log, logging.WARNING, "step analysis failed", recording=name.recording, reason=answer.error)
        return (FAILED if answer.error is not None else ANALYSED), answer

    def _ask(self, data: bytes) -> _Answer:
        """Raises TimeoutExpired, and OSError, ValueError or Misfit if the process has no answer."""
        command = [sys.executable, "-c", _WORKER, *sys.path]
        with self._condition:
            if self._closed:
                raise OSError("the sidecar is stopping")
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        with process:
            try:
                output, _ = process.communicate(data, timeout=self._timeout)
            finally:
                process.kill()
                self._process = None
        return codec.read(_Answer, codec.loads(output))


def analyse(data: bytes) -> tuple[StepView, ...]:
    """Return the figures of each device in a recording. Raises BadInput."""
    found = recording.decode(data)
    steps = []
    for one in found.devices:
        step = read_step(one.events, one.heap)
        needs: Needs = step_needs(one.device, one.heap, one.events, one.driver)
        steps.append(
            StepView(
                device=one.device,
                time=found.time,
                seconds=found.seconds,
                peak_active=step.peak_active,
                largest_request=step.largest_request,
                allocations=step.allocations,
                requested=step.requested,
                limit=needs.limit,
                smallest_limits=dict(needs.smallest_limits),
            )
        )
    return tuple(steps)


def answer(data: bytes) -> _Answer:
    began = time.process_time()
    try:
        steps, error = analyse(data), None
    except (GpufragError, MemoryError) as failure:
        steps, error = (), str(failure) or type(failure).__name__
    return _Answer(time.process_time() - began, steps, error)


def main() -> None:
    import resource

    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    print(json.dumps(asdict(answer(sys.stdin.buffer.read(recording.MAX_BYTES + 1)))))
