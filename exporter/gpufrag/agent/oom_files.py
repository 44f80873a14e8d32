"""Where a process leaves its reports of out-of-memory errors: beside its sample, a file each, the last few of them."""

from __future__ import annotations

from pathlib import Path

from ..wire.folder import FileName, ReportName, write_file
from ..wire.oom_report import OomReport, encode

KEPT = 8
"""So many of one process: of a search for a batch size, the last ones tell most."""


def keep(folder: Path, report: OomReport) -> None:
    """Write it, and take away the one that is now too many. Raises OSError."""
    process = FileName.of(report.identity)
    write_file(folder / ReportName(process, report.number).file, encode(report))
    if report.number > KEPT:
        (folder / ReportName(process, report.number - KEPT).file).unlink(missing_ok=True)
