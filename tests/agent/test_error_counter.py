"""Errors are counted by source, and each source is logged once."""

from __future__ import annotations

import logging

import pytest

from gpufrag.wire.error_counter import ErrorCounter


def test_first_error_of_each_source_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    errors = ErrorCounter()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for _ in range(3):
            errors.note("publish", OSError("no room"), "make some")
        errors.note("heap", "no blocks", "look")
    assert errors.counts == {"heap": 1, "publish": 3}
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "gpufrag publish: OSError: no room; make some",
        "gpufrag heap: no blocks; look",
    ]


def test_thread_refused_at_shutdown_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    errors = ErrorCounter()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        errors.note("control", RuntimeError("can't create new thread at interpreter shutdown"), "look")
    assert (errors.counts, caplog.records) == ({"control": 1}, [])


def test_log_handler_that_raises_is_harmless() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk of the log is full")

    logger, broken, errors = logging.getLogger("gpufrag"), Broken(), ErrorCounter()
    logger.addHandler(broken)
    try:
        errors.note("step", "it failed", "look")
    finally:
        logger.removeHandler(broken)
    assert errors.counts == {"step": 1}
