"""What goes wrong around a supervised job does not go wrong with the job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.supervised_process import eventually
from supervisor.test_supervisor import READY, job, pids, state


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def assert_it_restarts(it: Any) -> None:
    it.until("ready")
    assert it.ask("restart", restarts=0)["ok"]
    it.until("ready", 2)
    it.process.terminate()
    assert (it.end(), it.lines[-1]) == (3, "SIGTERM")


def test_nobody_need_read_what_it_says(start: Any, unread: int) -> None:
    assert_it_restarts(start(*job(), stderr=unread))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_its_log_may_be_full(start: Any) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert_it_restarts(start(*job(), stderr=full))


def test_it_may_have_no_stderr(start: Any) -> None:
    assert_it_restarts(start(*job(), stderr=None, preexec_fn=lambda: os.close(2)))


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_that_is_ignored_from_the_start_ends_nothing(start: Any, number: signal.Signals) -> None:
    it = start("--", "sh", "-c", READY, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    it.until("ready")
    it.process.send_signal(number)
    assert it.ask("restart", restarts=0)["ok"]
    it.until("ready", 2)
    assert not it.job.ending


def test_that_restarts_have_ended_is_told_once(start: Any) -> None:
    it = start("--name", "train", *job())
    it.until("ready")
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
        it.process.send_signal(number)
        it.until(number.name)
    assert it.told == "gpufrag: SIGHUP: train is not started again after this\n"


def test_who_stops_the_job_alone_does_not_stop_its_supervisor(start: Any) -> None:
    it = start("--grace", "300ms", *job())
    it.until("ready")
    (pid,) = pids(it.lines)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state(pid) == "T")
    assert it.ask("restart", restarts=0)["ok"]
    it.until("ready", 2)


def test_what_cannot_be_tidied_up_does_not_change_the_exit_code(start: Any) -> None:
    it = start(*job(code=0))
    it.until("ready")
    it.socket.with_suffix(".pause").mkdir()  # a folder cannot be unlinked
    it.process.terminate()
    assert (it.end(), "cannot" in it.told) == (0, False)
