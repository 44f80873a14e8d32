"""Read one file of an agent without trusting it."""

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
    """Why a file gives no process."""

    ALIEN = "alien"
    """Not written by an agent: another name, an identity that does not match, a link, a pipe, a folder."""
    DENIED = "denied"
    """No permission to read the file or to connect to its socket."""
    HUGE = "huge"
    """Larger than the config allows, or than any sample."""
    NEWER = "newer"
    """Written by a newer gpufrag."""
    TOO_MANY = "too_many"
    """Beyond the number or the total size of files that the config allows."""
    TOO_MUCH = "too_much"
    """Beyond what one scrape shows of all ranks (processes.MAX_MOMENTS); smaller files come first."""
    TORN = "torn"
    """It has an agent's name, but its content is not a sample."""


REMEDIES = {
    Skip.DENIED: "run the sidecar as the job's user, or give both a group that may write to the folder, before the job "
    "starts (chmod 2770; in Kubernetes an emptyDir volume, or securityContext.fsGroup)",
    Skip.HUGE: "if it is an agent's, raise folder.max_file_size",
    Skip.NEWER: "upgrade this gpufrag",
    Skip.TOO_MANY: "raise folder.max_processes or folder.max_total_size",
    Skip.TORN: "not a complete sample: remove it if it belongs to no rank",
    Skip.TOO_MUCH: "find the process that writes so many devices; give each job its own folder",
}
"""What to do, by reason."""


def is_ours(content: object) -> bool:
    """Return whether gpufrag, of this or a newer version, wrote what `read_as` returned; a name proves nothing."""
    return content is Skip.NEWER or not isinstance(content, Skip)


class Stamp(NamedTuple):
    """Changes whenever the file is written or replaced."""

    modified_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, entry: os.DirEntry[str]) -> Stamp | None:
        """Return the stamp of the entry, not of a link's target; None if it is gone."""
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
    """Return the sample in a file of at most `most` bytes (and MAX_BYTES); None if the file is gone."""
    return read_as(decode, path, min(most, MAX_BYTES))


def read_as(decode: Callable[[bytes], Record], path: Path, most: int) -> Record | Skip | None:
    """Return the record in a regular file of at most `most` bytes; None if the file is gone."""
    try:
        file = open_plain(path)
    except FileNotFoundError:
        return None
    except PermissionError:
        return Skip.DENIED
    except OSError:  # ELOOP: a link; ENXIO: a socket; EINVAL: a pipe or a folder
        return Skip.ALIEN
    try:
        with file as opened:
            data = opened.read(most + 1) or b""
    except OSError:  # EIO or ESTALE, of a network folder
        return Skip.TORN
    if len(data) > most:
        return Skip.HUGE
    try:
        return decode(data)
    except NewerVersion:
        return Skip.NEWER
    except BadInput:
        return Skip.TORN
