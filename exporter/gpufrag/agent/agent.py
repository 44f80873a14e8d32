"""One agent: the thread that samples a source, the file it publishes and the socket it listens on."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import participant as checkpoint
from ..errors import Unavailable
from ..wire.control_server import ControlServer
from ..wire.error_counter import ErrorCounter
from ..wire.folder import VARIABLE, FileName, to_write, write_file
from ..wire.oom_report import OomReport
from ..wire.sample import Identity, ProcessSample, encode
from . import oom_files
from .beside import Beside, leads
from .blackbox import BlackBox
from .clocks import Clocks
from .identity import identify, with_rank
from .sampler import Sampler
from .settings import AgentSettings
from .sources import Capture, Source, TellsFaults

ANSWER_WITHIN = 5.0
"""Seconds in which a caller of the control socket has its sample, or is told that there is none."""
TOLD_WITHIN = 0.2
"""Seconds, at most, for which an error waits until its count is published: the process may end of it. It takes two
milliseconds, unless the agent's thread is measuring a large heap just then."""
LAST_WORDS = 2.0
"""Seconds for which the end of the process waits for the last sample."""


class Agent:
    """Samples `source` and publishes until it is stopped. `start` is to be called in the user's own thread."""

    def __init__(
        self, source: Source, settings: AgentSettings, trouble: ErrorCounter | None = None, clocks: Clocks | None = None
    ) -> None:
        self._source, self._settings = source, settings
        self.trouble = self._trouble = trouble or ErrorCounter()
        self._clocks = clocks or Clocks()
        self._sampler, self._beside = Sampler(source, settings, self._trouble, self._clocks), Beside()
        self._identity = identify(trouble=self._trouble)
        self._folder: Path | None = None
        self._control: ControlServer | None = None
        self._wake, self._ending = threading.Event(), threading.Event()
        self._answers = threading.Condition()
        self._asked = self._answered = 0
        self._urged = self._heard = 0
        self._obliged_at = -math.inf
        self._thread = threading.Thread(target=self._run, name="gpufrag-sampler", daemon=True)
        self._box = BlackBox(self._capture, self._identify, self._keep, self._urge, self._trouble, self._clocks)
        self.latest: ProcessSample | None = None

    def start(self) -> None:
        """Raises RuntimeError where no thread can be had; then nothing of the agent stays in the process."""
        self._watch_ooms()
        self._sampler.watch_steps(self._wake.set)
        try:
            self._thread.start()
        except RuntimeError:
            self._source.close()
            raise

    def add(self, source: Source) -> None:
        """Another framework of this process uses a device too. In the user's own thread; once for each."""
        first, sampler = self._source, Sampler(source, self._settings, self._trouble, self._clocks)
        if source.framework == first.framework or source.framework in self._beside:
            return
        if not leads(source, first):
            self._beside.add(source, sampler)
            return
        self._beside.add(first, self._sampler)
        self._source, self._sampler = source, sampler
        self._watch_ooms()
        sampler.watch_steps(self._wake.set)

    def stop(self) -> None:
        """Publish a last sample, and stop listening: to readers, the process has ended."""
        self._source.close()
        self._beside.close()
        self._ending.set()
        self._wake.set()
        self._thread.join(LAST_WORDS)
        if self._control is not None:
            self._control.close()

    def abandon(self) -> None:
        """In a forked child, where the thread does not exist: the parent's file and socket are the parent's."""
        self._source.close()
        self._beside.close()
        if self._control is not None:
            self._control.abandon()

    def sample_now(self, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Publish a sample with a snapshot of the last second. Not for the agent's thread. Raises Unavailable."""
        with self._answers:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            if not self._answers.wait_for(lambda: self._answered >= mine, ANSWER_WITHIN) or self.latest is None:
                raise Unavailable(f"no sample within {ANSWER_WITHIN:g} s: the process is busy; ask again later")
            return {"time": self.latest.time}

    def _watch_ooms(self) -> None:
        """Before the first turn too: a program's first request may be the one that fails."""
        if not self._box.watching and isinstance(self._source, TellsFaults):
            self._box.watching = self._source.watch_ooms(self._box.explain)

    def _capture(self) -> Capture | None:
        return self._source.capture()

    def _keep(self, report: OomReport) -> None:
        try:
            oom_files.keep(self._folder or self._find_folder(), report)
        except FileNotFoundError:  # somebody has swept the folder away, and the next sample may come too late
            oom_files.keep(self._find_folder(), report)

    def _urge(self) -> None:
        """Have a sample published at once. Not for the agent's thread."""
        with self._answers:
            self._urged += 1
            mine = self._urged
            self._wake.set()
            self._answers.wait_for(lambda: self._heard >= mine, TOLD_WITHIN)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._guarded(self._follow)
            self._guarded(self._turn)
            if not self._sampler.following:
                self._wake.wait(self._pause())
            self._wake.clear()
        self._guarded(self._turn, last=True)

    def _follow(self) -> None:
        self._sampler.follow(self._wake.is_set, self._wake.wait)

    def _guarded(self, turn: Callable[..., None], **how: bool) -> None:
        """The sampler's outermost: whatever fails is counted, and the next turn begins anew."""
        try:
            turn(**how)
        except Exception as error:
            self._trouble.note("sampler", error, "report it, with this line")

    def _turn(self, last: bool = False) -> None:
        asked, urged = self._asked, self._urged
        publishing = last or asked > self._answered or urged > self._heard or self._sampler.read_in() <= 0
        if publishing:
            self._sampler.read()
        if not last and (self._obliges(asked) or self._timer_is_due()):
            self._sampler.take("timer")
        self._sampler.digest()
        if publishing:
            self._guarded(self._read_beside)
            self._publish()
        with self._answers:
            self._answered, self._heard = asked, urged
            self._answers.notify_all()

    def _read_beside(self) -> None:
        self._beside.read(self._identity)

    def _timer_is_due(self) -> bool:
        return not self._sampler.following and self._sampler.schedule.at_timer(self._clocks.wall())

    def _obliges(self, asked: int) -> bool:
        """Whether a snapshot is taken because somebody asked: not more often than the file is published."""
        now = self._clocks.monotonic()
        if asked == self._answered or now - self._obliged_at < self._settings.publish_every:
            return False
        self._obliged_at = now
        return True

    def _pause(self) -> float:
        """Seconds until there is something to do; never none, whatever the clocks do."""
        wall = self._clocks.wall()
        return max(0.001, min(self._sampler.read_in(), self._sampler.schedule.timer(wall) - wall))

    def _publish(self) -> None:
        if self.latest is None or not self.latest.devices:
            self._watch_ooms()  # the device may be in use only now
        sample = self._box.counted(self._sampler.sample(self._identify()))
        self._box.remember(sample)
        sample = self._beside.added(sample)
        name = FileName.of(sample.identity)
        try:
            folder = self._folder or self._find_folder()
            self._listen(folder / name.socket)
            write_file(folder / name.sample, encode(sample))
            self._folder = folder  # for good: file and socket must not part when another folder becomes usable
        except (OSError, Unavailable) as error:
            self._folder = None
            self._trouble.note("publish", error, "set GPUFRAG_DIR to a folder that this process may write to")
        self.latest = sample  # for start(port=…), which needs no folder

    def _find_folder(self) -> Path:
        wanted = self._settings.folder
        return to_write(os.environ if wanted is None else {VARIABLE: str(wanted)}).absolute()

    def _identify(self) -> Identity:
        """The environment is asked again until it tells a rank: some frameworks set it late."""
        if self._identity.rank is None:
            self._identity = with_rank(self._identity)
        return self._identity

    def _listen(self, path: Path) -> None:
        """From before the first sample on, so that no reader takes the process for a dead one."""
        if self._control is not None:
            if self._control.path == path and self._control.reachable:
                return
            self._control.close()
        commands = {"ping": self._ping, "sample-now": self.sample_now, **checkpoint.commands(self._identify)}
        try:
            self._control = ControlServer(path, commands, self._trouble)
        except RuntimeError as error:
            self._control = None
            remedy = "to the sidecar it has ended until it can have one; raise the limit of threads (pids.max)"
            self._trouble.note("control", error, remedy)

    def _ping(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"pid": os.getpid()}
