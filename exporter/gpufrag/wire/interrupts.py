"""Distinguishes failures of our own code in the program's threads from exceptions of the program.

Python runs signal handlers between any two instructions of the main thread, so the program's handler may raise while
our code runs. Such an exception must reach the program; any other must not.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dis import opmap
from itertools import pairwise
from types import CodeType, FrameType, TracebackType
from typing import Any

_RAISE = opmap["RAISE_VARARGS"]


def let_through(error: BaseException) -> None:
    """Raise `error` again if a signal handler of the program raised it; call it where `error` would be dropped."""
    if raised_by_signal_handler(error):
        raise error


def call_confined(function: Callable[..., object], *arguments: object) -> None:
    """Call code of the program, such as its log handlers, and drop what it raises."""
    try:
        function(*arguments)
    except BaseException as error:
        let_through(error)


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether `error`, just caught, comes from a signal handler, Python's own for SIGINT included."""
    if threading.current_thread() is not threading.main_thread():
        return False
    calls = list(_calls(error.__traceback__))
    frames = [frame for frame, _ in calls]
    if any(_is_given(handler, interrupted) for interrupted, handler in pairwise(frames)):
        return True
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    if any(frame.f_code in codes for frame in frames):
        return True
    if isinstance(error, KeyboardInterrupt) and calls:  # Python's own handler has no frame and no raise statement
        frame, instruction = calls[-1]
        return frame.f_code.co_code[instruction] != _RAISE
    return False


def _calls(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lasti
        traceback = traceback.tb_next


def _is_given(handler: FrameType, interrupted: FrameType) -> bool:
    """Python calls a handler with the frame that it interrupts. The handler may have been replaced since."""
    values = list(handler.f_locals.values())
    items = [item for value in values if type(value) is tuple for item in value]
    return any(value is interrupted for value in (*values, *items))


def _code(handler: Any) -> CodeType | None:
    """Of a function, method, partial or callable object."""
    handler = getattr(handler, "func", handler)
    if not hasattr(handler, "__code__") and callable(handler):
        handler = getattr(handler, "__func__", type(handler).__call__)
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
