"""Read the OOM reports in the agents' folder, each once, and delete old ones. Nothing in the folder is trusted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config.sidecar import FolderSettings
from ..wire.folder import FileName, ReportName
from ..wire.oom_report import MAX_BYTES, OomReport, decode
from . import sample_files
from .sample_files import Skip, Stamp, is_ours
from .sweep import Sweeper

Content = OomReport | Skip
LOOKED_AT = 10
"""Times as many files are read as are kept, so that a file that is not a report displaces none."""


class ReportFile(NamedTuple):
    name: ReportName
    stamp: Stamp


def listed(entries: Mapping[str, os.DirEntry[str]]) -> list[ReportFile]:
    """Return the entries with a report's name, the newest first."""
    named = [(name, Stamp.of(entry)) for text, entry in entries.items() if (name := ReportName.parse(text))]
    files = [ReportFile(name, stamp) for name, stamp in named if stamp]
    return sorted(files, key=lambda file: (-file.stamp.modified_ns, file.name))


class ReportReader:
    """For one thread at a time."""

    def __init__(self, folder: Path, settings: FolderSettings, clock: Callable[[], float]) -> None:
        self._folder, self._most = folder, settings.max_reports
        self._sweeper = Sweeper(folder, settings.report_retention, clock)
        self._known: dict[ReportFile, Content] = {}

    def read(self, files: list[ReportFile]) -> tuple[OomReport, ...]:
        """Return the reports in the newest of `files`, the latest error first; delete those beyond the limits."""
        before, self._known = self._known, {}
        self._sweeper.begin({file.name.file for file in files})
        kept = 0
        for file in files[: LOOKED_AT * self._most]:
            content = before.get(file) or read_one(self._folder, file.name)
            if content is None:
                continue
            ours = is_ours(content)
            written = self._sweeper.written(file.name.file, file.stamp)
            if ours and (kept == self._most or self._sweeper.expired(written)):
                self._sweeper.remove(file.name.file)
                continue
            self._known[file] = content
            kept += ours
        return in_order(self._known.values())


class Look(NamedTuple):
    """Reports, the latest error first, and the names of skipped files by reason."""

    reports: tuple[OomReport, ...]
    skipped: Mapping[Skip, Sequence[str]]


def read_all(folder: Path, most: int) -> Look:
    """Return the latest reports in the folder, at most `most`. Raises OSError for the folder."""
    with os.scandir(folder) as entries:
        files = listed({entry.name: entry for entry in entries})
    reports: list[OomReport] = []
    skipped: dict[Skip, list[str]] = {}
    for file in files[: LOOKED_AT * most]:
        if len(reports) == most:
            break
        content = read_one(folder, file.name)
        if isinstance(content, OomReport):
            reports.append(content)
        elif content is not None:
            skipped.setdefault(content, []).append(file.name.file)
    return Look(in_order(reports), skipped)


def read_one(folder: Path, name: ReportName) -> Content | None:
    """Return None if the file is gone."""
    content = sample_files.read_as(decode, folder / name.file, MAX_BYTES)
    if isinstance(content, OomReport) and name != ReportName(FileName.of(content.identity), content.number):
        return Skip.ALIEN  # a copy or a forgery
    return content


def in_order(contents: Iterable[Content]) -> tuple[OomReport, ...]:
    reports = [content for content in contents if isinstance(content, OomReport)]
    return tuple(sorted(reports, key=lambda report: -report.time))
