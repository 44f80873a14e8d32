"""Signal handlers for a part of a test."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Install `handler`; the old one is back afterwards."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
