"""Errors are counted by source, and each source is logged once."""

from __future__ import annotations

import logging

import pytest

from gpufrag.wire.error_counter import ErrorCounter


def test_each_is_counted_and_the_first_of_each_source_logged(caplog: pytest.LogCaptureFixture) -> None:
    trouble = ErrorCounter()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for _ in range(3):
            trouble.note("publish", OSError("no room"), "make some")
        trouble.note("heap", "no blocks", "look")
    assert trouble.counts == {"heap": 1, "publish": 3}
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "gpufrag publish: OSError: no room; make some",
        "gpufrag heap: no blocks; look",
    ]


def test_an_ending_interpreter_that_refuses_a_thread_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    trouble = ErrorCounter()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        trouble.note("control", RuntimeError("can't create new thread at interpreter shutdown"), "look")
    assert (trouble.counts, caplog.records) == ({"control": 1}, [])


def test_a_log_handler_that_raises_reaches_nobody() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk of the log is full")

    logger, broken, trouble = logging.getLogger("gpufrag"), Broken(), ErrorCounter()
    logger.addHandler(broken)
    try:
        trouble.note("step", "it failed", "look")
    finally:
        logger.removeHandler(broken)
    assert trouble.counts == {"step": 1}
