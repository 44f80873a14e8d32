"""`gpufrag oom`: out-of-memory errors, as agents reported them or as a log has them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import Unavailable, UsageError, one_line
from ..model.verdict import judge
from ..oom_log import log_chunks, read_log
from ..reports import oom, terminal
from ..sidecar.oom_files import read_all
from ..sidecar.sample_files import Skip
from ..wire.codec import dumps
from ..wire.folder import FileName, ReportName, to_read
from ..wire.oom_report import OomReport
from .arguments import FOLDER_HELP, folder_name, option

MOST = 1000
"""Reports that are read, the newest."""
WHY = {
    Skip.ALIEN: "no agent wrote it under this name",
    Skip.DENIED: "permission denied; run this as the job's user",
    Skip.HUGE: "it is larger than any report",
    Skip.NEWER: "a newer gpufrag wrote it; upgrade this one",
    Skip.TORN: "its content is not a report",
}
"""Why a file with a report's name is skipped."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(
        name: str, act: Callable[[argparse.Namespace], None], text: str, example: str
    ) -> argparse.ArgumentParser:
        child = actions.add_parser(name, help=text, description=text, epilog=f"example: gpufrag oom {example}")
        child.set_defaults(act=act)
        return child

    listing = action("list", _list, "list the errors that agents reported, newest first", "list --json")
    showing = action("show", _show, "show one report", "show 4711-1")
    explain = action("explain", _explain, "find out-of-memory errors in a log and name their cause", "explain job.log")
    showing.add_argument("id", metavar="ID", help="id from `gpufrag oom list`, or the name of the report's file")
    explain.add_argument("file", metavar="FILE", help="a job's log, compressed or not; - for standard input")
    for child in (listing, showing):
        option(child, "--folder", "DIR", FOLDER_HELP, folder_name)
    for child in (listing, showing, explain):
        child.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, null if unknown)")


def run(options: argparse.Namespace) -> int:
    options.act(options)
    return 0


def _list(options: argparse.Namespace) -> None:
    kept = _reports(options.folder)
    if options.json:
        print(dumps(list(map(oom.as_record, kept)), 2))
    elif kept:
        print(oom.list_text(kept, terminal.bold(sys.stdout)))
    else:
        print("No recent out-of-memory errors.")


def _show(options: argparse.Namespace) -> None:
    report = _find(options.id, _reports(options.folder))
    if options.json:
        print(dumps(oom.whole_record(report), 2))
    else:
        print(oom.as_text(report, terminal.bold(sys.stdout)))


def _reports(named: Path | None) -> tuple[OomReport, ...]:
    """Return the reports in the folder, newest first. Raises Unavailable if there is no such folder."""
    folder = named or to_read(os.environ)
    try:
        look = read_all(folder, MOST)
    except FileNotFoundError:
        raise Unavailable(
            f"{folder}: no such folder (the first agent creates it); choose another with --folder"
        ) from None
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}; name the agents' folder with --folder") from None
    for why, names in look.skipped.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"gpufrag: skipped {one_line(str(folder / names[0]))}{more}: {WHY[why]}", file=sys.stderr)
    return look.reports


def _find(wanted: str, reports: Sequence[OomReport]) -> OomReport:
    """Raises UsageError if no report, or more than one, has this id."""
    files = {ReportName(FileName.of(report.identity), report.number).file: report for report in reports}
    found = {file: report for file, report in files.items() if wanted in (report.id, file)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        names = ", ".join(found)
        raise UsageError(f"report {wanted}: several containers have this pid; name the file: {names}")
    raise UsageError(f"no report {wanted}; list the reports with `gpufrag oom list`")


def _explain(options: argparse.Namespace) -> None:
    """Print each error as soon as it is read: a log may be larger than memory."""
    explained = _explained(options.file)
    if options.json:
        _print_list(explained)
        return
    bold, number = terminal.bold(sys.stdout), 0
    for number, found in enumerate(explained, start=1):
        print(("\n" if number > 1 else "") + oom.explained_text(found, bold))
    if number == 0:
        print("No out-of-memory errors of torch, TensorFlow or JAX in this log.")


def _explained(file: str) -> Iterator[oom.Explained]:
    for found in read_log(log_chunks(file)):
        verdict = judge(found.facts)
        yield oom.Explained(found, verdict._replace(missing=(*found.missing, *verdict.missing)))


def _print_list(explained: Iterator[oom.Explained]) -> None:
    """If reading fails midway, close the list; if nothing was found by then, print none."""
    before = "["
    try:
        for found in explained:
            print(before + dumps(oom.explained_record(found)), end="")
            before = ",\n "
    except BaseException:
        if before != "[":
            print("]")
        raise
    print("[]" if before == "[" else "]")
