"""The agents' folder: who is alive, what each says, and what else lies there.

A process is alive if its control socket has a listener. A file without one is a dead process: its last words stay
for a while after it was last seen alive, then its files are removed. Nothing in the folder is trusted, and no single
file can fail the reading.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..config.sidecar import FolderSettings
from ..errors import Unavailable
from ..logs import event
from ..metrics.view import RankView
from ..wire.control_client import listens
from ..wire.folder import FileName
from ..wire.oom_report import OomReport
from ..wire.sample import ProcessSample
from ..wire.supervised_job import JobFile
from . import oom_files, sample_files
from .sample_files import REMEDIES, Skip, Stamp
from .sweep import Sweeper

log = logging.getLogger(__name__)
MAX_MOMENTS = 4096
"""Shown at once, of all devices of all ranks, where a device without one counts too. Each makes some 60 series, so
that no folder makes a scrape of millions; 16 ranks that use 16 devices each have 1,024 at most.
"""
_TOLD = 3  # names in a log line

Skipped = dict[Skip, list[str]]


@dataclass(frozen=True)
class Reading:
    """What the folder told at one time."""

    ranks: tuple[RankView, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Files that gave no rank, by reason; every reason is there."""
    ooms: tuple[OomReport, ...] = ()


class _File(NamedTuple):
    """A sample's file, by its name."""

    name: FileName
    stamp: Stamp
    has_socket: bool


class _Memory(NamedTuple):
    """What is kept of a file until the next reading, so that an unchanged one is not read again."""

    stamp: Stamp
    content: ProcessSample | Skip
    last_alive: float


class ProcessReader:
    """Reads the folder again and again. For one thread at a time. `clock` is in seconds of the system clock."""

    def __init__(self, folder: Path, settings: FolderSettings, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._settings, self._clock = folder, settings, clock
        self._names: dict[str, FileName | None] = {}
        self._known: dict[FileName, _Memory] = {}
        self._alive: frozenset[FileName] = frozenset()
        self._told: Skipped = {}
        self._sweeper = Sweeper(folder, settings.dead_process_retention, clock)
        self._reports = oom_files.ReportReader(folder, settings, clock)

    def read(self) -> Reading:
        """One reading; each process is as its latest file has it. Raises Unavailable where there is no folder."""
        skipped: Skipped = {reason: [] for reason in Skip}
        listed = self._scan()
        self._sweeper.begin(listed)
        reports = oom_files.listed(listed)
        for report in reports:
            del listed[report.name.file]
        files = self._within_bounds(self._list(listed, skipped), skipped)
        before, self._known = self._known, {}
        ranks = self._ranks(files, before, skipped)
        self._alive = frozenset(FileName.of(rank.sample.identity) for rank in ranks if rank.alive)
        self._tell(skipped)
        counts = {reason.value: len(names) for reason, names in skipped.items()}
        return Reading(ranks, counts, self._reports.read(reports))

    def _list(self, listed: dict[str, os.DirEntry[str]], skipped: Skipped) -> list[_File]:
        """The samples; what begins with a dot is half-written, and no concern of a reader until it is old."""
        for text in [text for text in listed if text.startswith(".")]:
            self._sweeper.unfinished(listed.pop(text))
        self._names = {text: self._names[text] if text in self._names else FileName.parse(text) for text in listed}
        files = []
        for text, name in self._names.items():
            if name is not None and text == name.socket:
                if name.sample not in listed:
                    self._sweeper.lone_socket(listed[text])
            elif name is None and JobFile.parse(text):
                continue
            elif name is None or text != name.sample or not listed[text].is_file(follow_symlinks=False):
                skipped[Skip.ALIEN].append(text)
            elif stamp := Stamp.of(listed[text]):
                files.append(_File(name, stamp, _is_there(listed.get(name.socket))))
        return files

    def _scan(self) -> dict[str, os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name: entry for entry in entries}
        except FileNotFoundError:
            raise Unavailable(f"{self._folder}: no such folder yet; it comes with the first agent") from None
        except PermissionError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}; {_SHARE}, or {_ANOTHER}") from None
        except OSError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}; {_ANOTHER}") from None

    def _within_bounds(self, files: list[_File], skipped: Skipped) -> list[_File]:
        """Of too many those that may be alive, first who was, so that none comes and goes; then the latest.

        Of these the small ones come first: whoever fills the folder with large files pushes out none but such.
        """
        files.sort(key=lambda file: (not file.has_socket, file.name not in self._alive, -file.stamp.modified_ns))
        most, left = self._settings.max_processes, self._settings.max_total_size
        files[:most] = sorted(files[:most], key=lambda file: file.stamp.size.bit_length())  # roughly: sizes waver
        for count, file in enumerate(files[:most]):
            left -= min(file.stamp.size, self._settings.max_file_size)
            if left < 0:
                most = count
                break
        skipped[Skip.TOO_MANY] += [file.name.sample for file in files[most:]]
        return files[:most]

    def _ranks(self, files: list[_File], before: dict[FileName, _Memory], skipped: Skipped) -> tuple[RankView, ...]:
        """By name; what comes after the first that is too much is not even read."""
        found: dict[FileName, RankView] = {}
        left = MAX_MOMENTS
        for count, file in enumerate(files):
            rank = self._rank(file, before.get(file.name), skipped)
            left -= _moments(rank) if rank else 0
            if left < 0:
                skipped[Skip.TOO_MUCH] += [file.name.sample for file in files[count:]]
                break
            if rank:
                found[file.name] = rank
        return tuple(found[name] for name in sorted(found))

    def _rank(self, file: _File, before: _Memory | None, skipped: Skipped) -> RankView | None:
        """The process, or None for one that is skipped, swept, or gone meanwhile."""
        try:
            alive = file.has_socket and listens(self._folder / file.name.socket)
        except PermissionError:
            skipped[Skip.DENIED].append(file.name.socket)
            return None
        last_alive = self._last_alive(file, before, alive)
        content = before.content if before and before.stamp == file.stamp else self._read(file)
        if content is None:
            return None
        if not alive and _is_ours(content) and self._sweeper.expired(last_alive):
            self._sweeper.remove(file.name.sample, file.name.socket)
            return None
        self._known[file.name] = _Memory(file.stamp, content, last_alive)
        if isinstance(content, Skip):
            skipped[content].append(file.name.sample)
            return None
        return RankView(content, alive)

    def _last_alive(self, file: _File, before: _Memory | None, alive: bool) -> float:
        """A file's time is in it too: it is all that is known of a process that died while nobody looked."""
        now = self._clock()
        if alive:
            return now
        written = self._sweeper.written(file.name.sample, file.stamp)
        return max(written, min(before.last_alive, now)) if before else written

    def _read(self, file: _File) -> ProcessSample | Skip | None:
        content = sample_files.read(self._folder / file.name.sample, self._settings.max_file_size)
        if isinstance(content, ProcessSample) and FileName.of(content.identity) != file.name:
            return Skip.ALIEN  # a copy, or a forgery: its process has a file of its own
        return content

    def _tell(self, skipped: Skipped) -> None:
        """Log what is skipped when that changes, not at each reading."""
        for reason, names in skipped.items():
            names.sort()
            if names and names != self._told.get(reason):
                shown = ", ".join(names[:_TOLD]) + (", …" if len(names) > _TOLD else "")
                fields = {"reason": reason.value, "count": len(names), "files": shown, "remedy": REMEDIES.get(reason)}
                event(log, logging.WARNING, "files skipped", **fields)
        self._told = skipped


_SHARE = "let the sidecar and the job share a user or a group that may read it"
_ANOTHER = "name another folder with --folder"


def _is_there(socket: os.DirEntry[str] | None) -> bool:
    return socket is not None and not socket.is_symlink()


def _moments(rank: RankView) -> int:
    """As MAX_MOMENTS counts them; of the dead none is shown."""
    return sum(max(1, len(device.snapshots) * rank.alive) for device in rank.sample.devices)


def _is_ours(content: ProcessSample | Skip) -> bool:
    """Whether an agent has written it, of this or a newer version; the name alone may be that of anybody's results."""
    return isinstance(content, ProcessSample) or content is Skip.NEWER
