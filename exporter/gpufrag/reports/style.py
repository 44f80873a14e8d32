"""Emphasis on a terminal, and none anywhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO

Emphasis = Callable[[str], str]


def bold(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Emphasis:
    """Makes text bold where `stream` is a terminal that can (NO_COLOR and TERM=dumb say that it cannot)."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" or not stream.isatty():
        return str
    return "\x1b[1m{}\x1b[0m".format
