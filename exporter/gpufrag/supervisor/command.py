"""One run of the command: a child in its own process group, and all its descendants.

The terminal's signals go to the group. torchrun puts its workers into sessions of their own, so a run ends only when
all descendants have ended.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import Unavailable
from ..wire.processes import PROC, descendants, environment_of, parent_of
from ..wire.supervised_job import Elastic

KILL_TIMEOUT_S = 30.0
TERMINAL = Path("/dev/tty")
TERMINAL_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
MAX_SHEBANG = 256
"""Bytes of a script that the kernel reads to find its interpreter."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Run:
    """A child that runs `command`. Raises OSError like subprocess.Popen."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> None:
        supervisor = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            _end_with_parent(supervisor)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        self._process = subprocess.Popen(list(command), env=dict(environment), close_fds=False, preexec_fn=prepare)
        self.pid = self._process.pid
        self.status: int | None = None
        """The child's wait status; None while it lives."""

    def signal(self, number: int) -> None:
        """Send a signal to the child only."""
        if self.status is None:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> None:
        """Collect the child and adopted orphans that have ended; stop with a child that the terminal stopped."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED)) != (0, 0):
                if found[0] == self.pid:
                    self._update(found[1])

    def _update(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in TERMINAL_STOPS:  # after a SIGSTOP, only the job is meant
                self._stop_with_child(os.WSTOPSIG(status))
            return
        self.status = status
        self._process.returncode = os.waitstatus_to_exitcode(status)  # else Popen waits for it again
        take_terminal_back(self.pid)

    def _stop_with_child(self, number: int) -> None:
        """Report a stopped job to the shell, or give the terminal to a child that reads from it."""
        if number in (signal.SIGTTIN, signal.SIGTTOU) and lend_terminal(self.pid):
            self.signal_group(signal.SIGCONT)
            return
        take_terminal_back(self.pid)
        os.kill(os.getpid(), signal.SIGSTOP)

    def processes(self) -> list[int]:
        """Return the living processes of the run."""
        return descendants(os.getpid())

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def workers(self) -> list[int]:
        """Return torchrun's workers, without the processes they started, which inherit their environment."""
        workers = [pid for pid in self.processes() if elastic(pid) is not None]
        return [pid for pid in workers if parent_of(pid) not in workers]


def elastic(pid: int, proc: Path = PROC) -> Elastic | None:
    """Return torchrun's restart counts for its worker `pid`; None if it is no worker of torchrun, or is gone."""
    environment = environment_of(pid, proc)
    numbers = [environment.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in numbers):
        return None
    return Elastic(int(numbers[0]), int(numbers[1]))


def restart_obstacle(command: str, environment: Mapping[str, str]) -> str | None:
    """Return why `command` could not be started again, with the remedy. Searches PATH like subprocess.Popen."""
    path = shutil.which(command, path=os.pathsep.join(os.get_exec_path(environment)))
    if path is None:
        return f"{command!r} no longer exists or is not executable; restore it"
    with suppress(OSError), open(path, "rb") as program:  # unreadable: not a script
        shebang = program.readline(MAX_SHEBANG)
        if shebang.startswith(b"#!") and (words := shebang[2:].split()):
            interpreter = os.fsdecode(words[0])
            if not os.access(interpreter, os.X_OK):
                return f"{interpreter!r}, the interpreter of {path!r}, no longer exists or is not executable"
    return None


def end_as(status: int) -> int:
    """Return the exit code of a child that exited; end this process by the signal that ended the child."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    with suppress(OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump is enough
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    return 128 + number


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that no process of a job is lost. Raises Unavailable off Linux."""
    if _prctl is None or _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Unavailable("gpufrag run --restartable and --summary require Linux; leave them out")


def _end_with_parent(parent: int) -> None:
    """In a new child: receive SIGTERM when the parent's thread ends, however it ends."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGTERM)


def _find_prctl() -> ctypes._NamedFuncPointer | None:
    """Look it up before any fork: a new child should only call it."""
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl
    return None


_prctl = _find_prctl()


def lend_terminal(group: int) -> bool:
    """Make `group` the terminal's foreground group if ours is. Return whether it is now."""
    with suppress(OSError), _open_terminal() as terminal:
        if os.tcgetpgrp(terminal) == os.getpgrp():
            os.tcsetpgrp(terminal, group)
            return True
    return False


def take_terminal_back(group: int) -> None:
    """Make ours the foreground group if `group` is."""
    with suppress(OSError), _open_terminal() as terminal:
        if os.tcgetpgrp(terminal) == group:
            os.tcsetpgrp(terminal, os.getpgrp())


@contextmanager
def _open_terminal() -> Iterator[int]:
    """SIGTTOU would stop a background group that changes the terminal, so it is blocked meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        descriptor = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
