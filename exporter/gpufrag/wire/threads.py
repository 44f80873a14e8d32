"""Threads inside someone else's program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

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
