"""One agent: the thread that samples a source, the files it writes and the socket it listens on."""

from __future__ import annotations

import math
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import participant as checkpoint
from ..errors import Unavailable, UsageError
from ..wire import oom_report
from ..wire.control_server import ControlServer
from ..wire.defragmentation import DefragmentOptions, Result
from ..wire.error_counter import ErrorCounter
from ..wire.folder import VARIABLE, FileName, ReportName, to_write, write_file
from ..wire.oom_report import OomReport
from ..wire.sample import Identity, ProcessSample, encode
from ..wire.threads import file_size_signal_blocked, start_thread
from .identity import identify, with_rank
from .oom_reporter import OomReporter
from .sampler import Sampler
from .schedule import Clocks
from .secondary import SecondaryFrameworks, is_primary
from .settings import AgentSettings
from .sources import Defragments, ReportsFaults, Source
from .step_traces import MAX_STEPS

ANSWER_TIMEOUT = 5.0
"""Seconds for which a caller of the control socket waits for its sample."""
PUBLISH_TIMEOUT = 0.2
"""Seconds for which an out-of-memory error waits until its count is published, because the process may end. It takes
two milliseconds unless the agent's thread is packing a large heap."""
STOP_TIMEOUT = 2.0
"""Seconds for which the end of the process waits for the last sample."""
RECORD_TIMEOUT = 3600.0
REPORTS_KEPT = 8
"""Out-of-memory reports on disk per process, the latest."""


class Agent:
    """Samples `source` and publishes until it is stopped. Call `start` in the user's own thread."""

    def __init__(
        self, source: Source, settings: AgentSettings, errors: ErrorCounter | None = None, clocks: Clocks | None = None
    ) -> None:
        self._source, self._settings = source, settings
        self.errors = self._errors = errors or ErrorCounter()
        self._clocks = clocks or Clocks()
        self._sampler, self._others = Sampler(source, settings, self._errors, self._clocks), SecondaryFrameworks()
        self._identity = identify(errors=self._errors)
        self._folder: Path | None = None
        self._control: ControlServer | None = None
        self._wake, self._ending = threading.Event(), threading.Event()
        self._turns = threading.Condition()
        self._wanted, self._done = {"sample": 0, "publication": 0}, {"sample": 0, "publication": 0}
        self._extra_at = -math.inf
        self._thread: threading.Thread | None = None
        self._reporter = OomReporter(
            lambda: self._source.capture(),
            self._identify,
            self._keep_report,
            lambda: self._request("publication", PUBLISH_TIMEOUT),
            self._errors,
            self._clocks,
            lambda device: self._sampler.last_peak(device),
        )
        self._published: ProcessSample | None = None

    @property
    def latest(self) -> ProcessSample | None:
        """The last sample, with the snapshots that a sidecar would add to it. Any thread may ask."""
        return self._published and self._sampler.measured(self._published)

    @property
    def folder(self) -> Path | None:
        """Where it publishes; None before the first sample and after a failure."""
        return self._folder

    def start(self) -> None:
        """Raises RuntimeError if the system has no thread; then nothing of the agent stays in the process."""
        self._watch_ooms()
        self._sampler.watch_steps(self._wake.set, self._at_boundary)
        self._offer_defragmentation()
        try:
            self._thread = start_thread(self._run, "gpufrag-sampler")
        except RuntimeError:
            self._source.close()
            raise

    def add(self, source: Source) -> None:
        """Another framework of this process uses a device. Called in the user's own thread, once per framework."""
        first, sampler = self._source, Sampler(source, self._settings, self._errors, self._clocks)
        if source.framework == first.framework or source.framework in self._others:
            return
        if not is_primary(source, first):
            self._others.add(source, sampler)
            return
        self._others.add(first, self._sampler)
        self._source, self._sampler = source, sampler
        self._watch_ooms()
        sampler.watch_steps(self._wake.set, self._at_boundary)
        self._offer_defragmentation()

    def stop(self) -> None:
        """Publish a last sample and stop listening: to readers, the process has ended."""
        checkpoint.this_process().defragment = None
        self._guarded(self._sampler.close)
        self._source.close()
        self._others.close()
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
        if self._control is not None:
            self._guarded(self._control.close)  # the program may have closed the socket's descriptor

    def abandon(self) -> None:
        """In a forked child: the thread does not exist there, and the files and the socket are the parent's."""
        self._source.close()
        self._others.close()
        if self._control is not None:
            self._control.abandon()

    def sample_now(self, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Publish a sample with a snapshot of the last second. Not for the agent's thread. Raises Unavailable."""
        if not self._request("sample", ANSWER_TIMEOUT) or self._published is None:
            raise Unavailable(f"no sample within {ANSWER_TIMEOUT:g} s: the process is busy; ask again later")
        return {"time": self._published.time}

    def record(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Record the next `steps` steps into a file in the folder, and return its name.

        Not for the agent's thread. Raises Unavailable, and UsageError for an invalid request.
        """
        steps, stacks, seconds = (request.get(name) for name in ("steps", "stacks", "timeout"))
        if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
            raise UsageError(f"steps must be a whole number from 1 to {MAX_STEPS}")
        if type(stacks) is not bool or not isinstance(seconds, (int, float)) or not 0 < seconds <= RECORD_TIMEOUT:
            raise UsageError(f"stacks must be true or false, timeout seconds up to {RECORD_TIMEOUT:g}")
        snapshot = self._sampler.traces.record(steps, stacks, seconds)
        path = (self._folder or self._find_folder()) / FileName.of(self._identity).trace
        write_file(path, pickle.dumps(snapshot, protocol=4), mode=0o600)
        return {"file": path.name, "steps": steps}

    def _at_boundary(self, step: int) -> None:
        checkpoint.this_process().boundary(step)

    def _offer_defragmentation(self) -> None:
        can = isinstance(self._source, Defragments)
        checkpoint.this_process().defragment = self._defragment if can else None

    def _defragment(self, options: DefragmentOptions) -> tuple[Result, ...]:
        """In the training thread, between two steps. Raises GpufragError."""
        assert isinstance(self._source, Defragments)
        try:
            return self._source.defragment(options)
        finally:
            self._guarded(self._sampler.take_defragmented)
            self._wake.set()

    def _watch_ooms(self) -> None:
        """Called before the first turn too: the program's first request may be the one that fails."""
        if not self._reporter.watching and isinstance(self._source, ReportsFaults):
            self._reporter.watching = self._source.watch_ooms(self._reporter.explain)

    def _keep_report(self, report: OomReport) -> None:
        with file_size_signal_blocked():
            try:
                keep_report(self._folder or self._find_folder(), report)
            except FileNotFoundError:  # the folder was deleted, and the next sample may come too late
                keep_report(self._find_folder(), report)

    def _request(self, what: str, timeout: float) -> bool:
        """Wake the agent's thread and wait until it has done `what`. Not for that thread itself."""
        with self._turns:
            self._wanted[what] += 1
            mine = self._wanted[what]
            self._wake.set()
            return self._turns.wait_for(lambda: self._done[what] >= mine, timeout)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._guarded(self._turn)
            # above 0 whatever the clocks do
            self._wake.wait(max(0.001, min(self._sampler.read_in(), self._sampler.action_in())))
            self._wake.clear()
        self._guarded(self._turn, last=True)

    def _guarded(self, turn: Callable[..., None], **how: bool) -> None:
        """Count whatever fails; the next turn begins anew."""
        try:
            turn(**how)
        except BaseException as error:
            self._errors.note("sampler", error, "please report this line as a bug")

    def _turn(self, last: bool = False) -> None:
        wanted = dict(self._wanted)
        publishing = last or wanted != self._done or self._sampler.read_in() <= 0
        if publishing:
            self._sampler.read()
        if not last:
            now = self._clocks.monotonic()
            # a caller of the control socket gets a snapshot no more often than the file is published
            if wanted["sample"] > self._done["sample"] and now - self._extra_at >= self._settings.publish_every:
                self._extra_at = now
                self._sampler.take("timer")
            self._sampler.at_timer()
        self._sampler.digest()
        if publishing:
            self._guarded(lambda: self._others.read(self._identity))
            self._publish()
        with self._turns:
            self._done = wanted
            self._turns.notify_all()

    def _publish(self) -> None:
        if self._published is None or not self._published.devices:
            self._watch_ooms()  # the device may be in use only now
        sample = self._reporter.counted(self._sampler.sample(self._identify()))
        self._reporter.remember(sample)
        sample = self._others.added_to(sample)
        name = FileName.of(sample.identity)
        try:
            folder = self._folder or self._find_folder()
            self._listen(folder / name.socket)
            write_file(folder / name.sample, encode(sample))
            for suffix, recorded in self._sampler.take_files().items():  # the sidecar measures them
                write_file(folder / (name.stem + suffix), recorded)
            self._folder = folder  # for good: file and socket must not part when another folder becomes usable
        except (OSError, Unavailable) as error:
            self._folder = None
            self._errors.note("publish", error, "set GPUFRAG_DIR to a folder that this process may write to")
        self._published = sample  # for start(port=…), which needs no folder

    def _find_folder(self) -> Path:
        wanted = self._settings.folder
        return to_write(os.environ if wanted is None else {VARIABLE: str(wanted)}).absolute()

    def _identify(self) -> Identity:
        """The environment is read again until it has a rank: some frameworks set it late."""
        if self._identity.rank is None:
            self._identity = with_rank(self._identity)
        return self._identity

    def _listen(self, path: Path) -> None:
        """Listen before the first sample is written, so that no reader takes the process for a dead one."""
        if self._control is not None:
            if self._control.path == path and self._control.reachable:
                return
            self._control.close()
        commands = {
            "ping": lambda request: {"pid": os.getpid()},
            "sample-now": self.sample_now,
            "record": self.record,
            **checkpoint.commands(self._identify),
        }
        try:
            self._control = ControlServer(path, commands, self._errors)
        except RuntimeError as error:
            self._control = None
            remedy = "the sidecar shows this process as ended until it has one; raise the limit of threads (pids.max)"
            self._errors.note("control", error, remedy)


def keep_report(folder: Path, report: OomReport) -> None:
    """Write the report next to the sample, and delete the oldest one above REPORTS_KEPT. Raises OSError."""
    process = FileName.of(report.identity)
    write_file(folder / ReportName(process, report.number).file, oom_report.encode(report))
    if report.number > REPORTS_KEPT:
        (folder / ReportName(process, report.number - REPORTS_KEPT).file).unlink(missing_ok=True)
