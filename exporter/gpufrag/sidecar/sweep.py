"""Removes what dead processes have left in the agents' folder, once nobody is to see it any more.

Only what bears an agent's name is removed, and of that nothing that has a listener.
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
        self._allowed = True
        self._ahead: dict[str, tuple[Stamp, float]] = {}

    def begin(self, names: Collection[str]) -> None:
        """One more look at the folder, in which these files are: the others are forgotten."""
        self._ahead = {name: known for name, known in self._ahead.items() if name in names}

    def written(self, name: str, stamp: Stamp) -> float:
        """When the file was written; where its time lies ahead (a clock was set back), when it was seen first."""
        now = self._clock()
        if stamp.modified <= now:
            return stamp.modified
        known, since = self._ahead.get(name, (stamp, now))
        since = min(since, now) if known == stamp else now
        self._ahead[name] = stamp, since
        return since

    def expired(self, since: float) -> bool:
        """Whether what has been of no use since then is to go."""
        return self._clock() - since > self._keep

    def remove(self, *names: str) -> None:
        """Best effort: a folder that only its agents may change costs some files, not the scrape."""
        for name in names if self._allowed else ():
            try:
                (self._folder / name).unlink(missing_ok=True)
            except IsADirectoryError:  # no agent made that, and it does not show
                continue
            except OSError as error:
                self._allowed = False
                event(log, logging.WARNING, "files of dead processes stay", folder=self._folder, reason=error.strerror)
                return

    def unfinished(self, entry: os.DirEntry[str]) -> None:
        """What a process that was killed while it wrote has left."""
        name = name_of_draft(entry.name) or ""
        if (FileName.parse(name) or ReportName.parse(name) or JobFile.parse(name)) and self._is_old(entry):
            self.remove(entry.name)
            with suppress(OSError):  # a socket is bound inside a folder of its own
                (self._folder / entry.name).rmdir()

    def lone_socket(self, entry: os.DirEntry[str]) -> None:
        """One without a sample: its process is dead, or has not sampled yet, and then it listens."""
        if not self._is_old(entry) or not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            return
        try:
            alive = listens(self._folder / entry.name)
        except PermissionError:  # somebody else's
            return
        if not alive:
            self.remove(entry.name)

    def _is_old(self, entry: os.DirEntry[str]) -> bool:
        stamp = Stamp.of(entry)
        return stamp is not None and self.expired(self.written(entry.name, stamp))
