"""Faults around a supervised job do not reach the job."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.supervised_process import READY, eventually, job, pids, state


@pytest.fixture
def unread():
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def assert_restarts(it: Any) -> None:
    it.until("ready")
    it.restart()
    it.process.terminate()
    assert (it.end(), it.lines[-1]) == (3, "SIGTERM")


def test_restart_works_with_a_broken_stderr(start, unread):
    assert_restarts(start(*job(), stderr=unread))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_restart_works_with_a_full_log(start):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert_restarts(start(*job(), stderr=full))


def test_restart_works_without_a_stderr(start):
    assert_restarts(start(*job(), stderr=None, preexec_fn=lambda: os.close(2)))


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_ignored_signal_does_not_end_restarts(started, number):
    it = started("--", "sh", "-c", READY, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    it.process.send_signal(number)
    it.restart()
    assert not it.job.ending


def test_end_of_restarts_is_logged_once(started):
    it = started("--name", "train", *job())
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
        it.process.send_signal(number)
        it.until(number.name)
    assert it.stderr == "gpufrag: received SIGHUP; will not restart train again\n"


def test_stopped_job_can_be_restarted(started):
    it = started("--grace", "300ms", *job())
    (pid,) = pids(it.lines)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state(pid) == "T")
    it.restart()


def test_failed_cleanup_keeps_the_exit_code(started):
    it = started(*job(code=0))
    it.socket.with_suffix(".pause").mkdir()  # a folder cannot be unlinked
    it.process.terminate()
    assert (it.end(), "cannot" in it.stderr) == (0, False)
