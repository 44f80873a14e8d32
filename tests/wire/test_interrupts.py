"""Exceptions of the program's signal handlers pass through our code; our own errors are counted and logged once."""

import functools
import logging
import os
import signal
import threading
from typing import Any

import pytest

from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.interrupts import call_confined, let_through, raised_by_signal_handler
from signal_handlers import handled


class Alarm(Exception):
    """What a program raises in its handler."""


def interrupted(number: int = signal.SIGUSR1) -> None:
    """Our code, in which a signal arrives."""
    os.kill(os.getpid(), number)
    for _ in range(1000):
        pass


def by_function(number: int, frame: object) -> None:
    raise Alarm


def by_helper(*arguments: object) -> None:
    by_function(0, None)


def by_one_shot(number: int, frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise SystemExit(3)


class Handlers:
    def method(self, number: int, frame: object) -> None:
        raise Alarm

    def __call__(self, number: int, frame: object) -> None:
        raise Alarm


@pytest.mark.parametrize(
    "handler",
    [
        by_function,
        by_helper,
        by_one_shot,
        Handlers().method,
        Handlers(),
        functools.partial(by_function),
        lambda *arguments: by_function(0, None),
    ],
    ids=["function", "helper", "replaced", "method", "object", "partial", "lambda"],
)
def test_exception_of_a_signal_handler_passes_through(handler: Any) -> None:
    with handled(signal.SIGUSR1, handler), pytest.raises((Alarm, SystemExit)):
        call_confined(interrupted)


def test_keyboard_interrupt_of_the_user_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        call_confined(interrupted, signal.SIGINT)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_exception_of_called_code_is_dropped(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind

    with handled(signal.SIGUSR1, by_function):
        call_confined(fail)


def test_exception_in_another_thread_is_ours() -> None:
    found: list[bool] = []

    def run() -> None:
        try:
            by_function(0, None)
        except Alarm as error:
            found.append(raised_by_signal_handler(error))

    with handled(signal.SIGUSR1, by_function):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert found == [False]


def test_counted_error_lets_the_programs_exception_through() -> None:
    errors = ErrorCounter()

    def ours() -> None:
        try:
            interrupted()
        except Alarm as error:
            errors.note("step", error, "nothing")

    with handled(signal.SIGUSR1, by_function), pytest.raises(Alarm):
        ours()
    assert errors.counts == {}


def test_error_without_traceback_is_ours() -> None:
    let_through(RuntimeError())
    let_through(KeyboardInterrupt())


# --- the counter of our own errors


def test_first_error_of_each_source_is_logged(caplog) -> None:
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


def test_thread_refused_at_shutdown_is_not_logged(caplog) -> None:
    errors = ErrorCounter()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        errors.note("control", RuntimeError("can't create new thread at interpreter shutdown"), "look")
    assert (errors.counts, caplog.records) == ({"control": 1}, [])


@pytest.mark.parametrize("kind", [OSError, SystemExit, KeyboardInterrupt])
def test_log_handler_that_raises_is_harmless(kind: type[BaseException]) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise kind

    logger, broken, errors = logging.getLogger("gpufrag"), Broken(), ErrorCounter()
    logger.addHandler(broken)
    try:
        errors.note("step", RuntimeError("ours"), "look")
    finally:
        logger.removeHandler(broken)
    assert errors.counts == {"step": 1}
