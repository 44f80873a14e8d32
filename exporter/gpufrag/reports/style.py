"""Emphasis on a terminal, and none anywhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO

Emphasis = Callable[[str], str]


def bold(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Emphasis:
    """Makes text bold where `stream` is a terminal that can (NO_COLOR says that it is not to)."""
    return "\x1b[1m{}\x1b[0m".format if colours(stream, environ) else str


def colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to colour what goes to `stream`."""
    return understands(stream, environ) and not environ.get("NO_COLOR")


def understands(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` is a terminal that can be steered; TERM=dumb says that it cannot."""
    return stream.isatty() and environ.get("TERM") != "dumb"
