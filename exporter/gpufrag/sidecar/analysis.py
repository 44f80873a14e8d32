"""Measures the recordings of ranks, and works out how much memory their steps need, in low-priority processes.

Measuring takes milliseconds: one process does it for all ranks. What a
step needs takes seconds: each recording has its own process. Both read a recording on standard input and answer with a
line of JSON. A recording that is broken or takes too long affects only that process.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from ..errors import GpufragError
from ..logs import event
from ..metrics.view import StepView
from ..model.layout import cells
from ..model.needs import Needs, step_needs
from ..model.step import read_step
from ..wire import codec, recording
from ..wire.codec import Most
from ..wire.folder import FileName, open_plain
from ..wire.measuring import measure_recording
from ..wire.sample import SNAPSHOTS, Snapshot

log = logging.getLogger(__name__)

MEMORY_LIMIT = 4 << 30
"""Address space of the worker. A recording of 100,000 events takes about 300 MB."""
OWN_CGROUP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
NICENESS = 19
ANALYSED, FAILED, TIMED_OUT, SKIPPED = "analysed", "failed", "timed_out", "skipped"
INCONSISTENT = "inconsistent"
"""The events do not lead to the heap: another thread allocated while they were read."""
RESULTS = (ANALYSED, FAILED, TIMED_OUT, SKIPPED, INCONSISTENT)
MAX_ANSWER = 4 << 20
MEASURE_TIMEOUT = 15.0
"""Seconds, at most: measuring 1,000,000 blocks takes 0.5 s, and the snapshots of all other ranks wait meanwhile."""
KILL_TIMEOUT = 5.0
"""Seconds to wait for a killed worker: the kernel may hold it."""
MEASURE, ANALYSE = "measure", "analyse"


@dataclass(frozen=True)
class DeviceFigures:
    """What a recording shows of one device."""

    device: int
    snapshots: Annotated[tuple[Snapshot, ...], Most(SNAPSHOTS)] = ()
    largest_request: int | None = None
    """Of the recorded step; None without one."""
    layout: str = ""
    """Of the heap at the latest moment (model.layout.cells)."""


@dataclass(frozen=True)
class RankFigures:
    """What is known of one rank. `window`: seconds within which to expect its next recording."""

    devices: Mapping[int, DeviceFigures] = field(default_factory=dict)
    window: float = 0.0
    steps: tuple[StepView, ...] = ()


@dataclass(frozen=True)
class _Answer:
    """What a process writes: the figures, or the steps, or why there is neither."""

    cpu_seconds: float
    devices: Annotated[tuple[DeviceFigures, ...], Most(recording.DEVICES)] = ()
    window: float = 0.0
    has_step: bool = False
    inconsistent: bool = False
    steps: Annotated[tuple[StepView, ...], Most(recording.DEVICES)] = ()
    error: str | None = None


@dataclass
class _Job:
    """One kind of work for a rank. `wanted` and `done` are modification times of the file in ns."""

    file: str
    due: float = 0.0  # on the monotonic clock
    wanted: int = 0
    done: int = 0

    def want(self, changed: int) -> bool:
        """Return whether an earlier recording is skipped for this one."""
        skipped = self.wanted not in (0, self.done, changed)
        self.wanted = changed
        return skipped


class _Rank:
    """What is to be done for one rank, and what is known of it.

    Agents write snapshots without events to a second file, so that they replace no step that was not measured yet.
    """

    def __init__(self, name: FileName) -> None:
        self.step, self.heap, self.needs = _Job(name.recording), _Job(name.heap), _Job(name.recording)
        self.figures = RankFigures()

    @property
    def measured(self) -> tuple[_Job, _Job]:
        return self.step, self.heap


class Analyzer:
    """Measures and analyses the newest recording of each rank, within a share of a core for each rank.

    needs: whether to work out what steps need too.
    """

    def __init__(
        self,
        folder: Path,
        cpu_share: float,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        needs: bool = True,
    ) -> None:
        self._folder, self._share, self._timeout, self._clock, self._needs = folder, cpu_share, timeout, clock, needs
        self._ranks: dict[FileName, _Rank] = {}
        self._condition = threading.Condition()
        self._closed = False
        self._measuring, self._analysing = _Process(MEASURE, min(timeout, MEASURE_TIMEOUT)), _Process(ANALYSE, timeout)
        self.counts: Counter[str] = Counter()
        """Recordings by result: one of RESULTS."""
        work = {"gpufrag-measuring": self._measure, "gpufrag-analysis": self._analyse}
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in work.items()]
        for thread in self._threads:
            thread.start()

    def look(self, names: Iterable[FileName]) -> Mapping[FileName, RankFigures]:
        """Return the latest figures of these ranks, and have newer recordings measured."""
        self.watch(names := set(names))
        return self.figures(names)

    def watch(self, names: Iterable[FileName]) -> None:
        """Have newer recordings of these ranks, and of no others, measured. Hangs while the folder does."""
        with self._condition:
            self._ranks = {name: self._ranks.get(name) or _Rank(name) for name in set(names)}
            jobs = [job for rank in self._ranks.values() for job in rank.measured]
        for job in jobs:
            with suppress(OSError):
                changed = (self._folder / job.file).lstat().st_mtime_ns
                with self._condition:
                    self._count(SKIPPED, job.want(changed))
        with self._condition:
            self._condition.notify_all()

    def figures(self, names: Iterable[FileName]) -> Mapping[FileName, RankFigures]:
        """Return the latest figures of these ranks. Does not wait."""
        with self._condition:
            ranks = {name: rank for name in names if (rank := self._ranks.get(name)) is not None}
            return {name: rank.figures for name, rank in ranks.items() if any(job.done for job in rank.measured)}

    def close(self) -> None:
        """End the threads; one that hangs in the folder ends with the process."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for process in (self._measuring, self._analysing):
            process.close(for_good=True)
        deadline = time.monotonic() + KILL_TIMEOUT
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _measure(self) -> None:
        while (found := self._next(lambda rank: rank.measured)) is not None:
            rank, job = found
            changed, began = job.done, self._clock()
            result, answer = self._ask(self._measuring, job)
            with self._condition:
                self._spend(rank.measured, answer, began)
                if answer is None or result != ANALYSED:
                    self.counts[result] += 1
                    rank.figures = RankFigures()
                    continue
                self._count(INCONSISTENT, answer.inconsistent)
                devices = {one.device: _merged(rank.figures.devices.get(one.device), one) for one in answer.devices}
                rank.figures = RankFigures(devices, answer.window, rank.figures.steps)
                if answer.has_step and self._needs:
                    self._count(SKIPPED, rank.needs.want(changed))
                    self._condition.notify_all()

    def _analyse(self) -> None:
        while (found := self._next(lambda rank: (rank.needs,))) is not None:
            rank, job = found
            began = self._clock()
            result, answer = self._ask(self._analysing, job)
            self._analysing.close()
            with self._condition:
                self.counts[result] += 1
                self._spend((job,), answer, began)
                steps = answer.steps if answer and result == ANALYSED else ()
                rank.figures = replace(rank.figures, steps=steps)

    def _next(self, jobs: Callable[[_Rank], Iterable[_Job]]) -> tuple[_Rank, _Job] | None:
        """Wait for a rank with a new file and budget, and take the one that has waited longest. None: closed."""
        with self._condition:
            while not self._closed:
                waiting = [(rank, job) for rank in self._ranks.values() for job in jobs(rank) if job.wanted != job.done]
                rank, job = min(waiting, key=lambda one: (one[1].due, one[1].wanted), default=(None, None))
                if rank is not None and job is not None and job.due <= self._clock():
                    job.done = job.wanted
                    return rank, job
                self._condition.wait(timeout=1.0)
        return None

    def _count(self, result: str, happened: bool) -> None:
        if happened:
            self.counts[result] += 1

    def _spend(self, jobs: Iterable[_Job], answer: _Answer | None, began: float) -> None:
        """Each of the two kinds of work has half of the rank's share. Without an answer, all the time counts."""
        now = self._clock()
        for job in jobs:
            job.due = now + (answer.cpu_seconds if answer else now - began) / (self._share / 2)

    def _ask(self, process: _Process, job: _Job) -> tuple[str, _Answer | None]:
        try:
            with open_plain(self._folder / job.file) as file:
                data = file.read(recording.MAX_BYTES + 1)
            answer = process.ask(data)
        except TimeoutError:
            event(log, logging.WARNING, "step analysis timed out", recording=job.file, seconds=process.timeout)
            return TIMED_OUT, None
        except Exception as error:  # no memory or thread is left, for example; this thread must go on
            if not self._closed:
                event(log, logging.WARNING, "step analysis failed", recording=job.file, reason=error)
            return FAILED, None
        if answer.error is not None:
            event(log, logging.WARNING, "step analysis failed", recording=job.file, reason=answer.error)
        return (FAILED if answer.error is not None else ANALYSED), answer


class _Process:
    """A low-priority process that answers one recording after the other; started when needed.

    `close` may be called from any thread.
    """

    def __init__(self, work: str, timeout: float) -> None:
        self._work, self.timeout = work, timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def ask(self, data: bytes) -> _Answer:
        """Raises TimeoutError, and OSError, ValueError or Misfit if the process has no answer."""
        process, late = self._started(), threading.Event()
        assert process.stdin
        assert process.stdout

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.timeout, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(len(data).to_bytes(8, "little"))
            process.stdin.write(data)  # not joined: it may be half of what the container may use
            process.stdin.flush()
            line = process.stdout.readline(MAX_ANSWER)
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self.close()
            raise TimeoutError if late.is_set() else OSError("the process ended without an answer")
        return codec.read(_Answer, codec.loads(line))

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise OSError("the analysis has ended")
            if self._process is None:
                command = worker_command(__name__, self._work)
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            return self._process

    def close(self, for_good: bool = False) -> None:
        """End the process. The next `ask` starts another one, or fails if this was `for_good`."""
        with self._lock:
            self._ended |= for_good
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_TIMEOUT)


def _merged(before: DeviceFigures | None, now: DeviceFigures) -> DeviceFigures:
    """The latest snapshot of each moment; the largest request belongs to the latest peak."""
    if before is None:
        return now
    snapshots = {snapshot.at: snapshot for snapshot in (*before.snapshots, *now.snapshots)}
    has_peak = any(snapshot.at == "peak" for snapshot in now.snapshots)
    largest = now.largest_request if has_peak else before.largest_request
    return DeviceFigures(now.device, tuple(snapshots.values()), largest, now.layout)


def worker_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main(*arguments)` of a module in a process of its own.

    Not `python -m`, which would import modules from the working directory: others may write to it.
    """
    end = len(arguments) + 1
    code = (
        f"import sys; arguments, sys.path[:] = sys.argv[1:{end}], sys.argv[{end}:]; "
        f"from {module} import main; sys.exit(main(*arguments))"
    )
    return [sys.executable, "-c", code, *arguments, *sys.path]


def measured(data: bytes) -> _Answer:
    """Return what a recording shows. Raises BadInput."""
    began, found = time.process_time(), recording.decode(data)
    measured = measure_recording(found)
    devices = [
        DeviceFigures(
            one.device, one.snapshots, one.step.largest_request or None if one.step else None, cells(raw.heap)
        )
        for one, raw in zip(measured, found.devices)
    ]
    return _Answer(
        time.process_time() - began,
        tuple(devices),
        found.window,
        has_step=any(one.step is not None for one in measured),
        inconsistent=any(one.inconsistent for one in measured),
    )


def analyse(data: bytes) -> tuple[StepView, ...]:
    """Return what the step on each device needs. Raises BadInput."""
    found = recording.decode(data)
    steps = []
    for one in found.devices:
        if one.events is None:
            continue
        step = read_step(one.events, one.heap, one.active_before)
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


def answer(data: bytes, work: Callable[[bytes], _Answer]) -> _Answer:
    began = time.process_time()
    try:
        found = work(data)
    except (GpufragError, MemoryError) as failure:
        found = _Answer(0.0, error=str(failure) or type(failure).__name__)
    except Exception as failure:  # events and heap that no allocator wrote; the next recording may be of another rank
        found = _Answer(0.0, error=f"its events or its heap are inconsistent ({type(failure).__name__}: {failure})")
    return replace(found, cpu_seconds=time.process_time() - began)


def limit_memory(own: Path = OWN_CGROUP, groups: Path = CGROUPS) -> None:
    """Keep this process within MEMORY_LIMIT and half of what its cgroup has left.

    Above the cgroup's limit, the kernel may end the sidecar and all its workers.
    """
    import resource

    limit, room = MEMORY_LIMIT, cgroup_room(own, groups)
    if room is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = min(limit, pages * resource.getpagesize() + room // 2)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def cgroup_room(own: Path, groups: Path) -> int | None:
    """Return the bytes that the limits of this process's cgroups (v2) leave; None without a limit."""
    rooms = []
    with suppress(OSError, UnicodeDecodeError):
        for line in own.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::/"):
                place = groups / line.removeprefix("0::/")
                rooms += [_room(folder) for folder in (place, *place.parents) if folder.is_relative_to(groups)]
    known = [room for room in rooms if room is not None]
    return max(0, min(known)) if known else None


def _room(folder: Path) -> int | None:
    """Of one cgroup. Files in the page cache do not count: the kernel drops them."""
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        used = {name: int(size) for name, size in map(str.split, lines)}
        return limit - used["anon"] - used["shmem"]
    except (OSError, ValueError, KeyError):  # no limit ("max"), or no cgroup of version 2
        return None


def main(kind: str) -> None:
    os.nice(NICENESS)
    limit_memory()
    work: Callable[[bytes], _Answer] = measured if kind == MEASURE else lambda data: _Answer(0.0, steps=analyse(data))
    while length := sys.stdin.buffer.read(8):
        data = sys.stdin.buffer.read(int.from_bytes(length, "little"))
        print(json.dumps(asdict(answer(data, work))), flush=True)
