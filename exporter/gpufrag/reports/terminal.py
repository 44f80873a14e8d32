"""Bold text, colour and progress on a terminal; nothing of it in files and pipes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

Emphasis = Callable[[str], str]
FIRST_AFTER = 1.0
"""Seconds before the first progress line: shorter work shows none."""
EVERY = 0.1


def bold(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Emphasis:
    """Return a function that makes text bold if `stream` is a terminal and NO_COLOR is not set."""
    return "\x1b[1m{}\x1b[0m".format if colours(stream, environ) else str


def colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    return understands(stream, environ) and not environ.get("NO_COLOR")


def understands(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `stream` is a terminal that supports escape sequences."""
    return stream.isatty() and environ.get("TERM") != "dumb"


class Progress:
    """A progress line on `stream` (usually stderr), as a context manager that clears the line at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._what = ""
        self._began = time.monotonic()
        self._next = time.monotonic() + FIRST_AFTER

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def start(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next and total:
            self._next = now + EVERY
            left = (now - self._began) * (total - done) / done if done else 0
            self._write(f"{self._what}  {done / total:.0%}" + (f", {left:.0f} s left" if left >= 1 else ""))

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
