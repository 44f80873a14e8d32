"""The controlling terminal, lent to a job that is in a process group of its own and reads from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TERMINAL = Path("/dev/tty")


def lend(group: int) -> bool:
    """Make `group` the foreground group where ours is; whether it now is."""
    with suppress(OSError), _opened() as terminal:
        if os.tcgetpgrp(terminal) == os.getpgrp():
            os.tcsetpgrp(terminal, group)
            return True
    return False


def take_back(group: int) -> None:
    """Ours is the foreground group again, where `group` was."""
    with suppress(OSError), _opened() as terminal:
        if os.tcgetpgrp(terminal) == group:
            os.tcsetpgrp(terminal, os.getpgrp())


@contextmanager
def _opened() -> Iterator[int]:
    """A background group that changes the terminal would be stopped for it: not while SIGTTOU is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    descriptor = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
