"""One line on a terminal that says how far long work is; nothing where nobody looks."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

FIRST_AFTER = 1.0
"""Seconds: work that is done sooner shows no progress."""
EVERY = 0.1


class Progress:
    """Used as a context: what it wrote is gone when that ends. `stream` is where people look, seldom the output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._what = ""
        self._next = time.monotonic() + FIRST_AFTER

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def start(self, what: str) -> None:
        self._what = what

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next and total:
            self._next = now + EVERY
            self._write(f"{self._what}  {done / total:.0%}")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
