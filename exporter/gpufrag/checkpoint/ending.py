"""The end of a process that has saved for a restart: never with 0, which launchers take for a job well done."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

SAVED = 42
"""The exit code of a rank that has saved, and is to be started again."""
GRACE_S = 30.0
"""For what the program does at its exit; a process group that waits for ranks that are gone would wait for ever."""


def end_process(code: int = SAVED) -> None:
    """End this process, from the thread that trains."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            stream.flush()
    if threading.current_thread() is not threading.main_thread():
        os._exit(code)  # SystemExit would end this thread alone
    watchdog = threading.Timer(GRACE_S, os._exit, (code,))
    watchdog.daemon = True
    with suppress(RuntimeError):  # no more threads are to be had: then nobody watches
        watchdog.start()
    raise SystemExit(code)
