"""What goes wrong around a supervised job does not go wrong with the job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.test_supervisor import job


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
