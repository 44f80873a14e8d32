"""Threads inside someone else's program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FAULTS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
_BLOCKED = signal.valid_signals() - _FAULTS


def start_thread(target: Callable[..., object], name: str, *arguments: object) -> threading.Thread:
    """Start a daemon thread that takes no signal: a program that waits in sigwait blocks its signals only in its own.

    Raises RuntimeError if the system has no thread for it.
    """
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


@contextmanager
def file_size_signal_blocked() -> Iterator[None]:
    """In the program's own thread: a write above the limit of file sizes raises OSError instead of ending the job."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
    try:
        yield
    finally:
        if signal.SIGXFSZ not in before and signal.SIGXFSZ in signal.sigpending():
            signal.sigtimedwait({signal.SIGXFSZ}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
