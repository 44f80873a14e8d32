"""What is remembered off Kubernetes: annotations of named things, in one file of JSON, changed by compare-and-swap.

Receivers on one machine may share it; over a network file system that lacks locks, they must not.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Unavailable
from ..wire.codec import loads
from ..wire.folder import write_file
from .errors import Away, Conflict
from .kubernetes.cluster import PHASE

MOST = 10_000
"""Things remembered; of more, those are forgotten that were changed the longest time ago and are not under way."""


class Entry(NamedTuple):
    """One thing; version 0 is one that nothing is remembered of."""

    version: int = 0
    annotations: Mapping[str, str] = {}


class StateFile:
    """At `path`, made at the first change. Any thread and process may use it. Each call raises Away where it fails."""

    def __init__(self, path: Path) -> None:
        """Raises Unavailable where its folder cannot be written to."""
        self._path = path
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise Unavailable(f"{path.parent}: not a folder that can be written to; name another by state_file")
        if path.is_dir():
            raise Unavailable(f"{path}: a folder; name a file in it by state_file")

    def get(self, key: str) -> Entry:
        return self._read().get(key, Entry())

    def marked(self) -> dict[str, Entry]:
        """Those that bear PHASE."""
        return {key: entry for key, entry in self._read().items() if PHASE in entry.annotations}

    def patch(self, key: str, changes: Mapping[str, str | None], version: int | None, dry_run: bool = False) -> Entry:
        """The entry as it then is. Raises Conflict unless it has that `version`; None in `changes` removes one."""
        with self._locked():
            entries = self._read()
            before = entries.pop(key, Entry())
            if version is not None and version != before.version:
                raise Conflict(f"{self._path}: {key} has changed meanwhile; read it again")
            annotations = {
                name: value for name, value in {**before.annotations, **changes}.items() if value is not None
            }
            entries[key] = after = Entry(before.version + 1, annotations)
            if not dry_run:
                self._write(_bounded(entries))
            return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """By a file beside it, for it is itself replaced."""
        try:
            with self._path.with_name(f"{self._path.name}.lock").open("a", encoding="ascii") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise Away(f"{self._path}: {error.strerror}; see that its folder can be written to") from None

    def _read(self) -> dict[str, Entry]:
        try:
            raw = loads(self._path.read_bytes())
            return {key: _entry(one) for key, one in raw.items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Away(f"{self._path}: {error.strerror}; see that it can be read") from None
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
            raise Away(f"{self._path}: not what was written there; remove it, and all restarts are forgotten") from None

    def _write(self, entries: Mapping[str, Entry]) -> None:
        data = json.dumps({key: entry._asdict() for key, entry in entries.items()}).encode()
        write_file(self._path, data, sync=True)


def _entry(raw: Any) -> Entry:
    version, annotations = raw["version"], raw["annotations"]
    if type(version) is not int or not all(isinstance(value, str) for value in annotations.values()):
        raise TypeError
    return Entry(version, annotations)


def _bounded(entries: dict[str, Entry]) -> dict[str, Entry]:
    surplus = len(entries) - MOST
    idle = [key for key, entry in entries.items() if PHASE not in entry.annotations][: max(surplus, 0)]
    return {key: entry for key, entry in entries.items() if key not in set(idle)}
