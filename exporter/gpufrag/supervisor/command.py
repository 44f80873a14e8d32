"""One run of the command: a child in a process group of its own, and all that descends from it.

The group is what a terminal's signals are passed on to; torchrun puts its workers into sessions of their own, so the
end of a run is the end of all descendants.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from ..errors import Unavailable
from . import terminal
from .processes import descendants, elastic, end_with_parent, parent_of

KILLED_WITHIN_S = 30.0
OF_TERMINAL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


class Run:
    """A child that runs `command`. Its start raises OSError as `subprocess.Popen` does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> None:
        supervisor = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            end_with_parent(supervisor)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        self._process = subprocess.Popen(list(command), env=dict(environment), close_fds=False, preexec_fn=prepare)
        self.pid = self._process.pid
        self.status: int | None = None
        """As `waitpid` gave it; None while the child lives."""

    def signal(self, number: int) -> None:
        """To the child alone."""
        if self.status is None:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> None:
        """Take the end of the child, and of orphans that have become ours; where a terminal stops it, so do we."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED)) != (0, 0):
                if found[0] == self.pid:
                    self._take(found[1])

    def _take(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in OF_TERMINAL:  # by SIGSTOP somebody looks at the job alone
                self._stop_too(os.WSTOPSIG(status))
            return
        self.status = status
        self._process.returncode = os.waitstatus_to_exitcode(status)  # or it would look for its child when dropped
        terminal.take_back(self.pid)

    def _stop_too(self, number: int) -> None:
        """A shell must see a stopped job; one that only wants to use the terminal is given it."""
        if number in (signal.SIGTTIN, signal.SIGTTOU) and terminal.lend(self.pid):
            self.signal_group(signal.SIGCONT)
            return
        terminal.take_back(self.pid)
        os.kill(os.getpid(), signal.SIGSTOP)

    def left(self) -> list[int]:
        """The processes of the run that live."""
        return descendants(os.getpid())

    def kill(self) -> None:
        """Everything that is left, but not the child's parent."""
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def workers(self) -> list[int]:
        """The processes that torchrun has started itself; what they have started has their environment too."""
        workers = [pid for pid in self.left() if elastic(pid) is not None]
        return [pid for pid in workers if parent_of(pid) not in workers]


def end_as(status: int) -> int:
    """The exit code of a child that exited; of one that a signal ended, the same end for this process."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    with suppress(OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core is enough
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    return 128 + number


def refuse_immortal(pids: Sequence[int]) -> None:
    """Raises Unavailable where a killed process has not ended: the driver holds it, and the job's memory with it."""
    if pids:
        raise Unavailable(f"process {pids[0]} cannot be killed, and the job is not started again; look at the driver")
