"""One file of an agent, and its socket: what may be opened, and how far it is trusted."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..errors import BadInput, NewerVersion
from ..wire.folder import open_plain
from ..wire.sample import MAX_BYTES, ProcessSample, decode

Record = TypeVar("Record")


class Skip(str, Enum):
    """Why a file in the folder gives no process."""

    ALIEN = "alien"
    """No agent wrote it: another name, another identity than its name says, a link, a pipe, a folder."""
    DENIED = "denied"
    """The file may not be read, or its socket not be asked."""
    HUGE = "huge"
    """Larger than the config allows, or than any sample is."""
    NEWER = "newer"
    """Written by a newer gpufrag."""
    TOO_MANY = "too_many"
    """Above the number or the size, of all files together, that the config allows."""
    TOO_MUCH = "too_much"
    """Above what one scrape shows of all ranks together (processes.MAX_MOMENTS), which the smaller files fill."""
    TORN = "torn"
    """Its name is an agent's, its content is not a sample."""


REMEDIES = {
    Skip.DENIED: "let the sidecar run as the job's user, or make the folder, before the job starts, writable for a "
    "group of both (chmod 2770; in Kubernetes an emptyDir volume, or securityContext.fsGroup)",
    Skip.HUGE: "if it is an agent's, raise folder.max_file_size",
    Skip.NEWER: "upgrade this gpufrag",
    Skip.TOO_MANY: "raise folder.max_processes or folder.max_total_size",
    Skip.TOO_MUCH: "look who writes so many devices into the folder; give each job a folder of its own",
}
"""What the log says beside a reason; the others are left to whoever put the file there."""


class Stamp(NamedTuple):
    """Changes whenever the file is written or replaced."""

    modified_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, entry: os.DirEntry[str]) -> Stamp | None:
        """Of the entry itself, not of what it links to; None where it has gone meanwhile."""
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        return cls(status.st_mtime_ns, status.st_size, status.st_ino)

    @property
    def modified(self) -> float:
        """In seconds of the system clock."""
        return self.modified_ns / 1e9


def read(path: Path, most: int) -> ProcessSample | Skip | None:
    """The sample in a file of at most `most` bytes (and MAX_BYTES); None where it has gone meanwhile."""
    return read_as(decode, path, min(most, MAX_BYTES))


def read_as(decode: Callable[[bytes], Record], path: Path, most: int) -> Record | Skip | None:
    """The record in a regular file of at most `most` bytes; None where it has gone meanwhile."""
    try:
        file = open_plain(path)
    except FileNotFoundError:
        return None
    except PermissionError:
        return Skip.DENIED
    except OSError:  # ELOOP: a link; ENXIO: a socket; EINVAL: a pipe or a folder
        return Skip.ALIEN
    with file as opened:
        data = opened.read(most + 1) or b""
    if len(data) > most:
        return Skip.HUGE
    try:
        return decode(data)
    except NewerVersion:
        return Skip.NEWER
    except BadInput:
        return Skip.TORN
