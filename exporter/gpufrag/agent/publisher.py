"""The process's file in the shared folder: replaced whole, so that a reader sees the old sample or the new one."""

from __future__ import annotations

import os
from pathlib import Path

MODE = 0o644  # the sidecar may run as another user; what is in the file is no secret


def publish(path: Path, data: bytes) -> None:
    """Replace the file at `path`. Raises OSError where that fails; then the old file stands and no other is left."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.unlink(missing_ok=True)  # what is left of a killed process, or a link or pipe that somebody laid
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        try:
            os.fchmod(descriptor, MODE)  # whatever the process's umask is
            _write(descriptor, data)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
