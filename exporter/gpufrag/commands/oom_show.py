"""`gpufrag oom show ID`: all that one report tells."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ..errors import UsageError
from ..reports import oom, terminal
from ..wire.folder import FileName, ReportName
from ..wire.oom_report import OomReport
from . import oom_list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="as `gpufrag oom list` has it, or the name of the report's file")
    oom_list.add_arguments(parser, "one object, all that the report holds")


def run(options: argparse.Namespace) -> int:
    report = find(options.id, oom_list.reports(options.folder))
    if options.json:
        print(json.dumps(oom.whole_record(report), indent=2))
    else:
        print(oom.as_text(report, terminal.bold(sys.stdout)))
    return 0


def find(wanted: str, reports: Sequence[OomReport]) -> OomReport:
    """Raises UsageError where none, or more than one, is called so."""
    found = [report for report in reports if wanted in (report.id, _file(report))]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(_file, found))
        raise UsageError(f"report {wanted}: processes of several containers have that number; say which file: {names}")
    raise UsageError(f"no report {wanted}: see `gpufrag oom list` for those that are kept")


def _file(report: OomReport) -> str:
    return ReportName(FileName.of(report.identity), report.number).file
