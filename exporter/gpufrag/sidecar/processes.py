"""Read the agents' folder: which processes are alive, their samples, and files that are skipped.

A process is alive if its control socket has a listener. The sample of an exited process is kept for
`folder.dead_process_retention`, then its files are deleted. Nothing in the folder is trusted, and no file can fail the
reading.
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
from .sample_files import REMEDIES, Skip, Stamp, is_ours
from .sweep import Sweeper

log = logging.getLogger(__name__)
MAX_MOMENTS = 4096
"""Snapshots of all devices of all ranks; a device without one counts as one. Each makes about 60 series, so this bounds
the scrape; 16 ranks with 16 devices each have at most 1,024.
"""
LOGGED_NAMES = 3


_SHARE = "let the sidecar and the job share a user or a group that may read it"
_ANOTHER = "name another folder with --folder"

Skipped = dict[Skip, list[str]]


@dataclass(frozen=True)
class Reading:
    ranks: tuple[RankView, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of files by reason; every reason is present."""
    ooms: tuple[OomReport, ...] = ()


class _File(NamedTuple):
    name: FileName
    stamp: Stamp
    has_socket: bool


class _Memory(NamedTuple):
    """What is remembered of a file, so that an unchanged one is not read again."""

    stamp: Stamp
    content: ProcessSample | Skip
    last_alive: float


class ProcessReader:
    """For one thread at a time. `clock` is the system clock, in seconds."""

    def __init__(self, folder: Path, settings: FolderSettings, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._settings, self._clock = folder, settings, clock
        self._names: dict[str, FileName | None] = {}
        self._known: dict[FileName, _Memory] = {}
        self._alive: frozenset[FileName] = frozenset()
        self._logged: Skipped = {}
        self._sweeper = Sweeper(folder, settings.dead_process_retention, clock)
        self._reports = oom_files.ReportReader(folder, settings, clock)

    def read(self) -> Reading:
        """Read the folder. Raises Unavailable if it does not exist or cannot be read."""
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
        self._log(skipped)
        counts = {reason.value: len(names) for reason, names in skipped.items()}
        return Reading(ranks, counts, self._reports.read(reports))

    def _list(self, listed: dict[str, os.DirEntry[str]], skipped: Skipped) -> list[_File]:
        """Return the samples. A name that begins with a dot is a draft, which is deleted once it is old."""
        for text in [text for text in listed if text.startswith(".")]:
            self._sweeper.unfinished(listed.pop(text))
        self._names = {text: self._names[text] if text in self._names else FileName.parse(text) for text in listed}
        files = []
        for text, name in self._names.items():
            if name is not None and text == name.socket:
                if name.sample not in listed:
                    self._sweeper.lone_socket(listed[text])
            elif name is not None and text in name.data:
                if name.sample not in listed:
                    self._sweeper.remove_old(listed[text])
            elif name is None and JobFile.parse(text):
                continue
            elif name is None or text != name.sample or not listed[text].is_file(follow_symlinks=False):
                skipped[Skip.ALIEN].append(text)
            elif stamp := Stamp.of(listed[text]):
                socket = listed.get(name.socket)
                files.append(_File(name, stamp, socket is not None and not socket.is_symlink()))
        return files

    def _scan(self) -> dict[str, os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name: entry for entry in entries}
        except FileNotFoundError:
            raise Unavailable(f"{self._folder}: no such folder yet; the first agent creates it") from None
        except PermissionError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}; {_SHARE}, or {_ANOTHER}") from None
        except OSError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}; {_ANOTHER}") from None

    def _within_bounds(self, files: list[_File], skipped: Skipped) -> list[_File]:
        """Keep those that may be alive first, and of these the ones that were, so that none flickers; then the newest.

        Small files come before large ones, so that large files can only push out large files.
        """
        files.sort(key=lambda file: (not file.has_socket, file.name not in self._alive, -file.stamp.modified_ns))
        most, left = self._settings.max_processes, self._settings.max_total_size
        files[:most] = sorted(files[:most], key=lambda file: file.stamp.size.bit_length())
        for count, file in enumerate(files[:most]):
            left -= min(file.stamp.size, self._settings.max_file_size)
            if left < 0:
                most = count
                break
        skipped[Skip.TOO_MANY] += [file.name.sample for file in files[most:]]
        return files[:most]

    def _ranks(self, files: list[_File], before: dict[FileName, _Memory], skipped: Skipped) -> tuple[RankView, ...]:
        """Return the ranks by name; files after the first that exceeds the bound are not read."""
        found: dict[FileName, RankView] = {}
        left = MAX_MOMENTS
        for count, file in enumerate(files):
            rank = self._rank(file, before.get(file.name), skipped)
            if rank:  # the snapshots of exited processes are not shown
                left -= sum(max(1, len(device.snapshots) * rank.alive) for device in rank.sample.devices)
            if left < 0:
                skipped[Skip.TOO_MUCH] += [file.name.sample for file in files[count:]]
                break
            if rank:
                found[file.name] = rank
        return tuple(found[name] for name in sorted(found))

    def _rank(self, file: _File, before: _Memory | None, skipped: Skipped) -> RankView | None:
        """Return the process, or None if its file is skipped, deleted or gone."""
        try:
            alive = file.has_socket and listens(self._folder / file.name.socket)
        except PermissionError:
            skipped[Skip.DENIED].append(file.name.socket)
            return None
        last_alive = self._last_alive(file, before, alive)
        if before and before.stamp == file.stamp:
            content: ProcessSample | Skip | None = before.content
        else:
            content = sample_files.read(self._folder / file.name.sample, self._settings.max_file_size)
            if isinstance(content, ProcessSample) and FileName.of(content.identity) != file.name:
                content = Skip.ALIEN  # a copy or a forgery
        if content is None:
            return None
        if not alive and is_ours(content) and self._sweeper.expired(last_alive):
            self._sweeper.remove(file.name.sample, file.name.socket, *file.name.data)
            return None
        self._known[file.name] = _Memory(file.stamp, content, last_alive)
        if isinstance(content, Skip):
            skipped[content].append(file.name.sample)
            return None
        return RankView(content, alive)

    def _last_alive(self, file: _File, before: _Memory | None, alive: bool) -> float:
        """The file's time counts too: nothing else is known of a process that exited before the sidecar started."""
        now = self._clock()
        if alive:
            return now
        written = self._sweeper.written(file.name.sample, file.stamp)
        return max(written, min(before.last_alive, now)) if before else written

    def _log(self, skipped: Skipped) -> None:
        for reason, names in skipped.items():
            names.sort()
            if names and names != self._logged.get(reason):
                shown = ", ".join(names[:LOGGED_NAMES]) + (", …" if len(names) > LOGGED_NAMES else "")
                fields = {"reason": reason.value, "count": len(names), "files": shown, "remedy": REMEDIES.get(reason)}
                event(log, logging.WARNING, "files skipped", **fields)
        self._logged = skipped
