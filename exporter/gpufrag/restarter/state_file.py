"""Annotations of jobs outside Kubernetes, in one JSON file that is changed by compare-and-swap.

Restarters on one host may share it. On a network file system without locks, they must not.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Unavailable
from ..wire.codec import loads
from ..wire.folder import open_plain, write_file
from .backend import Away, Changes, Conflict
from .record import PHASE

MAX_BYTES = 64 << 20
MAX_ENTRIES = 10_000
"""The oldest entries without a restart in progress are dropped beyond this number."""
LOCK_TIMEOUT_S, LOCK_POLL_S = 5.0, 0.02
CIRCUIT = "circuit"


class Entry(NamedTuple):
    """The annotations of one job; version 0 has none."""

    version: int = 0
    annotations: Mapping[str, str] = {}


class StateFile:
    """The file at `path`, created at the first change. Any thread or process may use it. Each call may raise Away."""

    def __init__(self, path: Path) -> None:
        """Raises Unavailable if the file could not be written."""
        self._path = path
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise Unavailable(f"state_file: cannot write to the folder {path.parent}; choose another path")
        if path.is_dir():
            raise Unavailable(f"state_file: {path} is a folder; name a file in it")

    def get(self, key: str) -> Entry:
        return self._read().get(key, Entry())

    def marked(self) -> dict[str, Entry]:
        """Return the entries with a restart phase."""
        return {key: entry for key, entry in self._read().items() if PHASE in entry.annotations}

    def patch(self, key: str, changes: Changes, version: int | None) -> Entry:
        """Return the changed entry; None removes an annotation. Raises Conflict if the version has changed."""
        with self._locked():
            entries = self._read()
            before = entries.pop(key, Entry())
            if version is not None and version != before.version:
                raise Conflict(f"{self._path}: another process changed {key}")
            both = {**before.annotations, **changes}
            annotations = {name: value for name, value in both.items() if value is not None}
            entries[key] = after = Entry(before.version + 1, annotations)
            self._write(_bounded(entries))
            return after

    def load(self) -> tuple[Mapping[str, str], Any]:
        """Return the state of the circuit breaker; see `circuit.CircuitStore`."""
        entry = self.get(CIRCUIT)
        return entry.annotations, entry.version

    def save(self, changes: Changes, version: Any) -> None:
        self.patch(CIRCUIT, changes, version)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock a file next to it, because the file itself is replaced. Another program's lock must not hang us."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        try:
            with open(f"{self._path}.lock", "a", encoding="ascii", opener=_open_own) as file:
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() >= deadline:
                            raise Away(f"{file.name}: another process holds the lock; stop it") from None
                        time.sleep(LOCK_POLL_S)
                yield
        except OSError as error:
            raise Away(f"{self._path}: {error.strerror}; make its folder writable") from None

    def _read(self) -> dict[str, Entry]:
        try:
            with open_plain(self._path) as file:  # a link or a pipe at its place must not hang us
                raw = loads(file.read(MAX_BYTES))
            return {key: _entry(one) for key, one in raw.items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Away(f"{self._path}: {error.strerror}; make it readable") from None
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
            raise Away(f"{self._path}: not a state file; remove it to forget all restarts") from None

    def _write(self, entries: Mapping[str, Entry]) -> None:
        data = json.dumps({key: entry._asdict() for key, entry in entries.items()}).encode()
        write_file(self._path, data, sync=True)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def _entry(raw: Any) -> Entry:
    version, annotations = raw["version"], raw["annotations"]
    if type(version) is not int or not all(isinstance(value, str) for value in annotations.values()):
        raise TypeError
    return Entry(version, annotations)


def _bounded(entries: dict[str, Entry]) -> dict[str, Entry]:
    surplus = max(len(entries) - MAX_ENTRIES, 0)
    idle = [key for key, entry in entries.items() if PHASE not in entry.annotations and key != CIRCUIT]
    dropped = set(idle[:surplus])
    return {key: entry for key, entry in entries.items() if key not in dropped}
