"""The parent of a job that can be started again: it passes signals on, and listens on a socket of its own.

One thread does all of it, in `sigtimedwait`: signals of the terminal, ends of children, and the wake-up by which the
socket's thread says that a restart is wanted.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..agent.identity import identify
from ..errors import Unavailable
from ..wire.control_server import ControlServer
from ..wire.error_counter import ErrorCounter
from ..wire.folder import VARIABLE, FileName
from ..wire.supervised_job import PAUSE, RECORD, RESTART_COUNT, SOCKET, Elastic, JobFile, SupervisedJob
from . import processes
from .command import KILLED_WITHIN_S, Run, refuse_immortal
from .program import obstacle
from .record import Record
from .stale import sweep

ENDING = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
"""Passed on to the job's whole group, as by a terminal: what a shell script has started ends with it.

Not one that is ignored from the start (nohup, a script's &): it is not meant for the job, and must not end restarts.
"""
HEARD = ENDING | {
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
}
OF_GROUP = ENDING | {signal.SIGCONT, signal.SIGTSTP}
PRIVATE = 0o600
START_WITHIN_S, RETRY_S = 60.0, 1.0
"""What keeps a stopped job from its new start (no memory, no process to be had) often passes."""
LOOK_S = 0.1
"""Between two looks at what is left of a run, which may have ended as somebody else's child."""


@dataclass(frozen=True)
class Wishes:
    """How to restart; `grace_s` is the time from SIGTERM to SIGKILL."""

    name: str
    grace_s: float = 60.0
    in_place: bool = False
    """Workers of torchrun are ended, which starts them again by itself: needs --max-restarts."""


class Supervisor:
    """For the main thread. `folder` is the agents'."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], wishes: Wishes, folder: Path) -> None:
        self._command, self._environment, self._wishes, self._folder = command, environment, wishes, folder
        self._ending = False
        """Somebody has asked the job to end: it is not started again."""

    def run(self) -> int:
        """The status of the job's last run, as `waitpid` gives it. Raises OSError where it cannot be started."""
        processes.adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._heard = HEARD - {number for number in ENDING if signal.getsignal(number) == signal.SIG_IGN}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)
        name = FileName.of(identify())
        sweep(self._folder, name.host)
        files = {suffix: self._folder / JobFile(name, suffix).name for suffix in (SOCKET, RECORD, PAUSE)}
        self._record = Record(self._job(name), files[RECORD], files[PAUSE], self._wake)
        self._run = self._start(0)
        self._record.observe(self._elastic, lambda: self._run.left(), self._obstacle)
        try:
            control = self._listen(files[SOCKET])
            self._record.write()
            try:
                return self._supervise()
            finally:
                with suppress(OSError):  # what is left there is swept by the next one
                    control.close()
        except BaseException:
            self._run.kill()  # a fault of ours must not leave a job that nobody watches
            raise
        finally:
            for path in files.values():
                with suppress(OSError):  # the folder has become read-only; the job's end is told all the same
                    path.unlink(missing_ok=True)

    def _listen(self, path: Path) -> ControlServer:
        try:
            return ControlServer(path, self._record.commands, ErrorCounter(), PRIVATE)
        except (OSError, RuntimeError) as error:
            what = f"{path.parent}: no job can be restarted from there ({error})"
            raise Unavailable(f"{what}; set {VARIABLE} to another folder, or leave --restartable out") from None

    def _job(self, name: FileName) -> SupervisedJob:
        user = pwd.getpwuid(os.geteuid()).pw_name
        wishes = self._wishes
        return SupervisedJob(wishes.name, user, name.pid, name.start, 1, 0, True, in_place=wishes.in_place)

    def _start(self, restarts: int) -> Run:
        environment = {**self._environment, RESTART_COUNT: str(restarts)}
        return Run(self._command, environment, self._mask)

    def _supervise(self) -> int:
        while self._run.status is None:
            self._hear(None)
            if self._record.wanted and self._run.status is None:
                self._restart_in_place() if self._wishes.in_place else self._restart()
        return self._run.status

    def _restart(self) -> None:
        """Stop the job and start it anew, unless it has come to its end, or somebody wants it to end."""
        if self._ending:  # it may be at its end, after the last checkpoint
            self._record.done()
            return
        self._record.stopped()
        self._stop()
        if self._ending or self._run.status == 0:  # who has saved for a restart says so by another code
            return
        self._start_again()

    def _start_again(self) -> None:
        """Unless somebody ends the job meanwhile. Raises OSError where it cannot be started in START_WITHIN_S."""
        deadline, told = time.monotonic() + START_WITHIN_S, False
        while not self._ending:
            try:
                self._run = self._record.start_again(self._start)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise
                if not told:
                    told = True
                    _say(f"{self._wishes.name} cannot be started again yet ({error.strerror}), and is tried further")
                self._rest(RETRY_S)
            else:
                _say(f"restart {self._record.restarts} of {self._wishes.name}")
                return

    def _rest(self, seconds: float) -> None:
        """Though children end meanwhile: a start that fails has one too."""
        deadline = time.monotonic() + seconds
        while not self._ending and (left := deadline - time.monotonic()) > 0:
            self._hear(left)

    def _stop(self) -> None:
        deadline = time.monotonic() + self._wishes.grace_s
        self._run.signal_group(signal.SIGTERM)
        self._await_end(deadline)
        if self._run.left():
            _say(f"{self._wishes.name} was still there {self._wishes.grace_s:g} s after SIGTERM, and is killed")
        deadline = time.monotonic() + KILLED_WITHIN_S
        while (left := self._run.left()) and time.monotonic() < deadline:
            self._run.kill()  # again: one may just have been born
            self._hear(LOOK_S)
        self._run.reap()
        refuse_immortal(left)

    def _await_end(self, deadline_s: float) -> None:
        """Of the child, and then of what it has left, which is told to end as well."""
        orphans_told = False
        while (left := self._run.left()) and (now := time.monotonic()) < deadline_s:
            if self._run.status is not None and not orphans_told:
                orphans_told = True
                _tell(left, signal.SIGTERM)
            self._hear(min(LOOK_S, deadline_s - now))

    def _restart_in_place(self) -> None:
        """End the workers, never torchrun, unless they have ended by themselves since; it starts new ones."""
        before = self._record.restarts
        workers = self._run.workers()
        _tell(workers, signal.SIGTERM)
        deadline = time.monotonic() + self._wishes.grace_s
        while self._run.status is None and time.monotonic() < deadline and set(workers) & set(self._run.left()):
            self._hear(LOOK_S)
        _tell([pid for pid in self._run.left() if pid in workers], signal.SIGKILL)
        self._record.done()
        _say(f"the workers of {self._wishes.name} were ended for restart {before + 1}")

    def _hear(self, timeout_s: float | None) -> None:
        info = signal.sigwaitinfo(self._heard) if timeout_s is None else signal.sigtimedwait(self._heard, timeout_s)
        if info is None or info.si_signo == signal.SIGCHLD:
            self._run.reap()
            return
        if info.si_signo in ENDING and not self._ending:
            self._ending = True
            self._record.ends()
            _say(f"{signal.Signals(info.si_signo).name}: {self._wishes.name} is not started again after this")
        if info.si_signo in OF_GROUP:
            self._run.signal_group(info.si_signo)
        else:
            self._run.signal(info.si_signo)

    def _elastic(self) -> Elastic | None:
        told = [found for pid in self._run.workers() if (found := processes.elastic(pid))]
        return max(told, key=lambda one: one.restarts, default=None)

    def _obstacle(self) -> str | None:
        return None if self._wishes.in_place else obstacle(self._command[0], self._environment)

    def _wake(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)


def _tell(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # ended meanwhile, as was wanted
            continue


def _say(text: str) -> None:
    """For whoever reads: a job must not end because nobody can. Past the stream's buffer, written again at the exit."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # full, hung up, or closed
            os.write(sys.stderr.fileno(), f"gpufrag: {text}\n".encode(errors="backslashreplace"))
