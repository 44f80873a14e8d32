"""What supervisors that were killed have left in the folder; their jobs have ended with them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..wire.control_client import listens
from ..wire.supervised_job import PAUSE, RECORD, SOCKET, JobFile


def sweep(folder: Path, host: str) -> None:
    """Remove the files of those on this host that no longer listen. Best effort: they are in nobody's way.

    Where hosts share the folder, the socket of another one refuses from here although its supervisor lives.
    """
    with suppress(OSError):
        names = [name for entry in os.listdir(folder) if (name := JobFile.parse(entry)) and name.suffix == SOCKET]
        for name in names:
            if name.process.host == host and not _listens(folder / name.name):
                for suffix in (SOCKET, RECORD, PAUSE):
                    (folder / name._replace(suffix=suffix).name).unlink(missing_ok=True)


def _listens(path: Path) -> bool:
    """Only a refusal says that nobody does."""
    try:
        return listens(path)
    except PermissionError:
        return True
