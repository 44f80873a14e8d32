"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The same place by a path that fits into a socket's address."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bind(path: Path, backlog: int | None = None) -> socket.socket:
    """A socket with this name, which listens if there is a `backlog`."""
    bound = socket.socket(socket.AF_UNIX)
    with short_path(path) as address:
        bound.bind(address)
    if backlog is not None:
        bound.listen(backlog)
    return bound


def connect(path: Path) -> socket.socket:
    """Waits while the listener's queue is full."""
    caller = socket.socket(socket.AF_UNIX)
    with short_path(path) as address:
        caller.connect(address)
    caller.settimeout(20)
    return caller
