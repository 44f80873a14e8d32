"""The parent of a restartable job: it passes signals on and listens on its own control socket.

One thread does all of it, in `sigtimedwait`: it receives the terminal's signals, the ends of children, and the wake-up
from the control socket's thread when a restart is ordered.
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
from ..wire.control_client import listens
from ..wire.control_server import ControlServer
from ..wire.error_counter import ErrorCounter
from ..wire.folder import VARIABLE, FileName
from ..wire.supervised_job import PAUSE, RECORD, RESTART_COUNT, SOCKET, Elastic, JobFile, SupervisedJob
from .command import KILL_TIMEOUT_S, Run, adopt_orphans, elastic, restart_obstacle
from .record import Record

END_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
"""Passed on to the job's whole group, like a terminal does, so that what a shell script has started ends too.

Not those that are ignored from the start (nohup, a script's &): they are not meant for the job and end no restarts.
"""
HANDLED_SIGNALS = END_SIGNALS | {
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
}
GROUP_SIGNALS = END_SIGNALS | {signal.SIGCONT, signal.SIGTSTP}
SOCKET_MODE = 0o600
START_TIMEOUT_S, RETRY_S = 60.0, 1.0
"""A failed start (no memory, no free process) often works a little later."""
LOOK_S = 0.1
"""Between two looks at the processes of a run that is being stopped."""


@dataclass(frozen=True)
class RestartOptions:
    """`grace_s` is the time from SIGTERM to SIGKILL."""

    name: str
    grace_s: float = 60.0
    in_place: bool = False
    """End only torchrun's workers, which torchrun then starts again; needs --max-restarts."""
    defragment: bool = False
    """The restarter defragments before a restart."""


class Supervisor:
    """Runs in the main thread. `folder` is the shared folder of the agents."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], options: RestartOptions, folder: Path
    ) -> None:
        self._command, self._environment, self._options, self._folder = command, environment, options, folder
        self._ending = False
        """Whether a user has requested the job's end, so that it is not restarted."""

    def run(self) -> int:
        """Return the wait status of the job's last run. Raises OSError if it cannot be started."""
        adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ignored = {number for number in END_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}
        self._handled = HANDLED_SIGNALS - ignored
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        name = FileName.of(identify())
        remove_stale_files(self._folder, name.host)
        files = {suffix: self._folder / JobFile(name, suffix).name for suffix in (SOCKET, RECORD, PAUSE)}
        self._record = Record(self._job(name), files[RECORD], files[PAUSE], self._wake)
        self._run = self._start(0)
        self._record.observe(self._elastic, lambda: self._run.processes(), self._obstacle)
        try:
            control = self._listen(files[SOCKET])
            self._record.write()
            try:
                return self._supervise()
            finally:
                with suppress(OSError):  # the next supervisor removes what is left
                    control.close()
        except BaseException:
            self._run.kill()  # a bug of ours must not leave an unsupervised job
            raise
        finally:
            for path in files.values():
                with suppress(OSError):  # the folder has become read-only
                    path.unlink(missing_ok=True)

    def _listen(self, path: Path) -> ControlServer:
        try:
            return ControlServer(path, self._record.commands, ErrorCounter(), SOCKET_MODE)
        except (OSError, RuntimeError) as error:
            raise Unavailable(
                f"cannot make a control socket in {path.parent}: {error}; set {VARIABLE} to another folder, "
                "or leave out --restartable"
            ) from None

    def _job(self, name: FileName) -> SupervisedJob:
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # a container's user need not have an entry
            user = str(os.geteuid())
        options = self._options
        return SupervisedJob(
            options.name, user, name.pid, name.start, 1, 0, True,
            in_place=options.in_place, defragment=options.defragment,
        )  # fmt: skip

    def _start(self, restarts: int) -> Run:
        return Run(self._command, {**self._environment, RESTART_COUNT: str(restarts)}, self._mask)

    def _supervise(self) -> int:
        while self._run.status is None:
            self._handle_signal(None)
            if self._record.ordered and self._run.status is None:
                self._restart_in_place() if self._options.in_place else self._restart()
        return self._run.status

    def _restart(self) -> None:
        """Stop the job and start it again, unless it has finished or a user ends it."""
        if self._ending:  # it may be saving its last checkpoint
            self._record.order_done()
            return
        self._record.stopping()
        self._stop()
        if self._ending or self._run.status == 0:  # 0: finished; after a checkpoint for a restart it is 42
            return
        self._start_again()

    def _start_again(self) -> None:
        """Raises OSError if the job cannot be started within START_TIMEOUT_S."""
        deadline, logged = time.monotonic() + START_TIMEOUT_S, False
        while not self._ending:
            try:
                self._run = self._record.start_again(self._start)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise
                if not logged:
                    logged = True
                    _log(f"cannot start {self._options.name} again: {error.strerror}; retrying")
                self._handle_signals(RETRY_S)
            else:
                _log(f"restart {self._record.restarts} of {self._options.name}")
                return

    def _handle_signals(self, seconds: float) -> None:
        """Wait; returns early only if a user ends the job. A failed start ends a child too."""
        deadline = time.monotonic() + seconds
        while not self._ending and (left := deadline - time.monotonic()) > 0:
            self._handle_signal(left)

    def _stop(self) -> None:
        """Raises Unavailable if a process survives SIGKILL: the driver holds it, and its memory."""
        deadline = time.monotonic() + self._options.grace_s
        self._run.signal_group(signal.SIGTERM)
        self._await_end(deadline)
        if self._run.processes():
            _log(f"{self._options.name} did not end within {self._options.grace_s:g} s of SIGTERM; sending SIGKILL")
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (left := self._run.processes()) and time.monotonic() < deadline:
            self._run.kill()  # again, for processes that were just started
            self._handle_signal(LOOK_S)
        self._run.reap()
        if left:
            raise Unavailable(
                f"process {left[0]} survives SIGKILL, so the job is not started again; check the GPU driver (dmesg)"
            )

    def _await_end(self, deadline: float) -> None:
        """Wait for the child, then send SIGTERM to what it left behind and wait for that."""
        orphans_signalled = False
        while (left := self._run.processes()) and (now := time.monotonic()) < deadline:
            if self._run.status is not None and not orphans_signalled:
                orphans_signalled = True
                _signal_all(left, signal.SIGTERM)
            self._handle_signal(min(LOOK_S, deadline - now))

    def _restart_in_place(self) -> None:
        """End the workers; torchrun starts new ones."""
        before = self._record.restarts
        workers = self._run.workers()
        _signal_all(workers, signal.SIGTERM)
        deadline = time.monotonic() + self._options.grace_s
        while self._run.status is None and time.monotonic() < deadline and set(workers) & set(self._run.processes()):
            self._handle_signal(LOOK_S)
        _signal_all([pid for pid in self._run.processes() if pid in workers], signal.SIGKILL)
        self._record.order_done()
        _log(f"ended the workers of {self._options.name} for restart {before + 1}")

    def _handle_signal(self, timeout_s: float | None) -> None:
        info = signal.sigwaitinfo(self._handled) if timeout_s is None else signal.sigtimedwait(self._handled, timeout_s)
        if info is None or info.si_signo == signal.SIGCHLD:
            self._run.reap()
            return
        if info.si_signo in END_SIGNALS and not self._ending:
            self._ending = True
            self._record.ending()
            _log(f"received {signal.Signals(info.si_signo).name}; will not restart {self._options.name} again")
        if info.si_signo in GROUP_SIGNALS:
            self._run.signal_group(info.si_signo)
        else:
            self._run.signal(info.si_signo)

    def _elastic(self) -> Elastic | None:
        counts = [found for pid in self._run.workers() if (found := elastic(pid))]
        return max(counts, key=lambda one: one.restarts, default=None)

    def _obstacle(self) -> str | None:
        return None if self._options.in_place else restart_obstacle(self._command[0], self._environment)

    def _wake(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)


def remove_stale_files(folder: Path, host: str) -> None:
    """Remove the files of killed supervisors of this host; their jobs ended with them. Best effort.

    Another host's socket refuses a connection from here although its supervisor lives.
    """
    with suppress(OSError):
        names = [name for entry in os.listdir(folder) if (name := JobFile.parse(entry)) and name.suffix == SOCKET]
        for name in names:
            if name.process.host == host and not _may_listen(folder / name.name):
                for suffix in (SOCKET, RECORD, PAUSE):
                    with suppress(OSError):  # another user's; the next one may be ours
                        (folder / name._replace(suffix=suffix).name).unlink(missing_ok=True)


def _may_listen(path: Path) -> bool:
    try:
        return listens(path)
    except PermissionError:
        return True


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _log(text: str) -> None:
    """Bypass the stream's buffer, which would be written again at exit. An unwritable stderr must not end the job."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # full, closed, or hung up
            os.write(sys.stderr.fileno(), f"gpufrag: {text}\n".encode(errors="backslashreplace"))
