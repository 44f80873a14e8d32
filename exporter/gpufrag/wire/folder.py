"""The folder that training processes and the sidecar share: its place, its file names, and how to read and write there.

A process writes its latest sample to `<host>-<pid>-<start>.json` and listens on `<host>-<pid>-<start>.sock` while it
lives. Its OOM reports are next to them, and so are its latest step recording and its latest snapshot without events. A
name that starts with a dot is a draft. Other users may write to the folder, so nothing in it is trusted.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from ..errors import Unavailable
from .sample import Identity

VARIABLE = "GPUFRAG_DIR"
SHARED = Path("/run/gpufrag")
SAMPLE_SUFFIX = ".json"
SOCKET_SUFFIX = ".sock"
RECORDING_SUFFIX = ".step"
HEAP_SUFFIX = ".heap"
TRACE_SUFFIX = ".trace"

_STEM = re.compile(r"(?P<host>[A-Za-z0-9._-]+)-(?P<pid>[0-9]{1,10})-(?P<start>[0-9]{1,16})")
_REPORT = re.compile(r"(?P<stem>[A-Za-z0-9._-]+)\.oom-(?P<number>[1-9][0-9]{0,8})\.json")
_MAX_HOST = 60  # characters, so that every name fits into a socket's address
_DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")


class FileName(NamedTuple):
    """The process that owns a file; `start` is its start time in whole milliseconds."""

    host: str
    pid: int
    start: int

    @classmethod
    def of(cls, identity: Identity) -> FileName:
        """Shortens a long host name to its end, which usually has the machine's number."""
        host = re.sub(r"[^A-Za-z0-9._-]", "_", identity.host)[-_MAX_HOST:].lstrip(".")
        return cls(host or "localhost", identity.pid, round(identity.start * 1000))

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Parse the name of a sample or a socket; None for any other name."""
        stem, dot, suffix = name.rpartition(".")
        known = dot + suffix in (SAMPLE_SUFFIX, SOCKET_SUFFIX, RECORDING_SUFFIX, HEAP_SUFFIX, TRACE_SUFFIX)
        match = _STEM.fullmatch(stem) if known and not stem.startswith(".") else None
        return cls(match["host"], int(match["pid"]), int(match["start"])) if match else None

    @property
    def stem(self) -> str:
        return f"{self.host}-{self.pid}-{self.start}"

    @property
    def sample(self) -> str:
        return self.stem + SAMPLE_SUFFIX

    @property
    def socket(self) -> str:
        return self.stem + SOCKET_SUFFIX

    @property
    def recording(self) -> str:
        """The latest recorded step."""
        return self.stem + RECORDING_SUFFIX

    @property
    def heap(self) -> str:
        """The latest snapshot without events: a file of its own, so that no step is lost before it was measured."""
        return self.stem + HEAP_SUFFIX

    @property
    def trace(self) -> str:
        """What `gpufrag record` fetches and deletes."""
        return self.stem + TRACE_SUFFIX

    @property
    def data(self) -> tuple[str, ...]:
        """The files with what the process copied of its memory."""
        return self.recording, self.heap, self.trace


class ReportName(NamedTuple):
    """The file of one OOM report: `<host>-<pid>-<start>.oom-<number>.json`."""

    process: FileName
    number: int

    @classmethod
    def parse(cls, name: str) -> ReportName | None:
        """None for any other name."""
        match = _REPORT.fullmatch(name)
        process = FileName.parse(match["stem"] + SAMPLE_SUFFIX) if match else None
        return cls(process, int(match["number"])) if match and process else None

    @property
    def file(self) -> str:
        return f"{self.process.stem}.oom-{self.number}{SAMPLE_SUFFIX}"


def to_write(environment: Mapping[str, str] = os.environ, shared: Path = SHARED, temp: Path | None = None) -> Path:
    """Return the folder for a process that publishes, and create it if needed. Raises Unavailable if there is none."""
    if named := environment.get(VARIABLE):
        path = Path(named)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot create {path}: {error.strerror}; set {VARIABLE} to a writable folder") from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise Unavailable(f"{path} is not writable for uid {os.geteuid()}; set {VARIABLE} to a writable folder")
        return path
    if os.access(shared, os.W_OK | os.X_OK):
        return shared
    return _private(_own(temp), make=True)


def to_read(environment: Mapping[str, str] = os.environ, shared: Path = SHARED, temp: Path | None = None) -> Path:
    """Return the folder for a process that only reads; it may not exist yet. Raises Unavailable for an unsafe one.

    For the same environment and user it is the folder of `to_write`.
    """
    if named := environment.get(VARIABLE):
        return Path(named)
    own = _own(temp)
    if os.access(shared, os.R_OK | os.X_OK) and (os.access(shared, os.W_OK) or not own.exists()):
        return shared
    return _private(own, make=False)


def _own(temp: Path | None) -> Path:
    return (temp or Path(tempfile.gettempdir())) / f"gpufrag-{os.geteuid()}"


def _private(path: Path, make: bool) -> Path:
    """Every user may write to the temporary directory, so a folder there must be private and ours."""
    try:
        if make:
            path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except FileNotFoundError:
        if not make:
            return path
        raise Unavailable(f"{path.parent} does not exist; set {VARIABLE} to a writable folder") from None
    except OSError as error:
        raise Unavailable(f"cannot create {path}: {error.strerror}; set {VARIABLE} to a writable folder") from None
    owned = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not owned or status.st_mode & 0o077:
        raise Unavailable(f"{path} is not a private folder of uid {os.geteuid()}; remove it or set {VARIABLE}")
    return path


def open_plain(path: Path) -> FileIO:
    """Open a regular file without following a link or waiting for a pipe. Raises OSError for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # Python's open() would raise for a folder and leave it open
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb", buffering=0)


def write_file(path: Path, data: bytes, mode: int = 0o644, sync: bool = False) -> None:
    """Replace the file at `path` in one step, with this mode whatever the umask is.

    Safe in a folder that others may write to: the draft has a fresh name, and an existing file or link is not opened.
    Raises OSError; then the old file stands and no draft is left.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and len(data) > limit:  # the write would raise SIGXFSZ, which ends a program
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    draft = path.with_name(draft_name(path.name))
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            while data:
                data = data[os.write(descriptor, data) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def draft_name(name: str) -> str:
    """A fresh name for what becomes `name` once it is complete."""
    return f".{name}.{os.urandom(8).hex()}.tmp"


def name_of_draft(draft: str) -> str | None:
    """The name that a draft was to get; None if it is no draft."""
    match = _DRAFT.fullmatch(draft)
    return match["name"] if match else None
