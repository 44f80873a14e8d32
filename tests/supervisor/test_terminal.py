"""A supervised job at a terminal behaves as without a supervisor."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import sys
import termios
from typing import Any

import pytest

from supervisor.supervised_process import eventually, job, pids, state


@pytest.fixture
def terminal():
    """Our end, and the job's."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def at(theirs: int) -> dict[str, Any]:
    """A new session with that terminal, as a login has it."""

    def log_in() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    return {"stdin": theirs, "stdout": theirs, "preexec_fn": log_in}


READ = "import os; print(input(), file=open(os.environ['LOG'], 'a'))"


def test_job_reads_from_the_terminal(start, terminal):
    it = start("--", sys.executable, "-c", READ, **at(terminal[1]))
    os.write(terminal[0], b"hello\n")
    assert (it.end(), it.lines) == (0, ["hello"])


def test_ctrl_c_reaches_the_job_once(started, terminal):
    it = started(*job(), **at(terminal[1]))
    os.write(terminal[0], b"\x03")
    it.until("SIGINT")
    assert it.lines.count("SIGINT") == 1


def test_ctrl_z_stops_job_and_supervisor(started, terminal):
    it = started(*job(), **at(terminal[1]))
    (pid,) = pids(it.lines)
    os.write(terminal[0], b"\x1a")
    eventually(lambda: state(it.process.pid) == "T" and state(pid) == "T")
    it.process.send_signal(signal.SIGCONT)
    eventually(lambda: state(it.process.pid) != "T" and state(pid) != "T")
