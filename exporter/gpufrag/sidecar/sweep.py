"""Delete the files of exited processes from the agents' folder after their retention.

Only files with an agent's name are deleted, and none whose socket has a listener.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from ..logs import event
from ..wire.control_client import listens
from ..wire.folder import FileName, ReportName, name_of_draft
from ..wire.supervised_job import JobFile
from .sample_files import Stamp

log = logging.getLogger(__name__)


class Sweeper:
    """`keep` is in seconds, `clock` in seconds of the system clock."""

    def __init__(self, folder: Path, keep: float, clock: Callable[[], float]) -> None:
        self._folder, self._keep, self._clock = folder, keep, clock
        self._stuck: set[str] = set()
        self._ahead: dict[str, tuple[Stamp, float]] = {}

    def begin(self, names: Collection[str]) -> None:
        """Start a reading of the folder, which contains these names; forget the others."""
        self._stuck.intersection_update(names)
        self._ahead = {name: known for name, known in self._ahead.items() if name in names}

    def written(self, name: str, stamp: Stamp) -> float:
        """Return when the file was written; if that is in the future (a clock was set back), when it was first seen."""
        now = self._clock()
        if stamp.modified <= now:
            return stamp.modified
        known, since = self._ahead.get(name, (stamp, now))
        since = min(since, now) if known == stamp else now
        self._ahead[name] = stamp, since
        return since

    def expired(self, since: float) -> bool:
        """Return whether a file unused since then is past its retention."""
        return self._clock() - since > self._keep

    def remove(self, *names: str) -> None:
        """Delete the files. A file that cannot be deleted is logged and does not stop the others."""
        for name in names:
            try:
                (self._folder / name).unlink(missing_ok=True)
                self._stuck.discard(name)
            except IsADirectoryError:  # not made by an agent
                continue
            except OSError as error:
                if not self._stuck:  # once, until all could be deleted
                    event(log, logging.WARNING, "cannot delete files", folder=self._folder, reason=error.strerror)
                self._stuck.add(name)

    def unfinished(self, entry: os.DirEntry[str]) -> None:
        """Delete the draft of a process that was killed while it wrote."""
        name = name_of_draft(entry.name) or ""
        if (FileName.parse(name) or ReportName.parse(name) or JobFile.parse(name)) and self._is_old(entry):
            self.remove(entry.name)
            with suppress(OSError):  # a socket is bound in a folder of its own
                (self._folder / entry.name).rmdir()

    def remove_old(self, entry: os.DirEntry[str]) -> None:
        """Remove a file whose process has no sample any more."""
        if self._is_old(entry):
            self.remove(entry.name)

    def lone_socket(self, entry: os.DirEntry[str]) -> None:
        """Delete a socket without a sample and without a listener: a process that has not sampled yet listens."""
        if not self._is_old(entry) or not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            return
        try:
            alive = listens(self._folder / entry.name)
        except PermissionError:  # another user's
            return
        if not alive:
            self.remove(entry.name)

    def _is_old(self, entry: os.DirEntry[str]) -> bool:
        stamp = Stamp.of(entry)
        return stamp is not None and self.expired(self.written(entry.name, stamp))
