"""`gpufrag oom list`: the reports that are kept in the agents' folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..errors import Unavailable, one_line
from ..reports import oom, terminal
from ..sidecar.oom_files import Look, read_all
from ..sidecar.sample_files import Skip
from ..units import argument
from ..wire.folder import to_read
from ..wire.oom_report import OomReport
from .arguments import folder_name

MOST = 1000
"""Reports that are read, the latest."""
WHY = {
    Skip.ALIEN: "for no agent wrote it under this name",
    Skip.DENIED: "for it may not be read; ask as the job's user",
    Skip.HUGE: "for it is larger than any report",
    Skip.NEWER: "for a newer gpufrag wrote it; upgrade this one",
    Skip.TORN: "for its content is no report",
}
"""Of files that bear a report's name."""


def add_arguments(parser: argparse.ArgumentParser, form: str = "a list, an object a report") -> None:
    parser.add_argument(
        "--folder", metavar="DIR", type=argument(folder_name), help="where agents leave their reports ($GPUFRAG_DIR)"
    )
    parser.add_argument("--json", action="store_true", help=f"for programs: {form}, sizes in bytes")


def run(options: argparse.Namespace) -> int:
    kept = reports(options.folder)
    if options.json:
        print(json.dumps(list(map(oom.as_record, kept)), indent=2))
    elif kept:
        print(oom.list_text(kept, terminal.bold(sys.stdout)))
    else:
        print("no report is kept: no request has failed in a process with an agent, or it was too long ago")
    return 0


def reports(named: Path | None) -> tuple[OomReport, ...]:
    """Those in the folder, the latest first. Raises Unavailable where there is none."""
    folder = named or to_read(os.environ)
    try:
        look = read_all(folder, MOST)
    except FileNotFoundError:
        raise Unavailable(
            f"{folder}: no such folder; name the agents' with --folder (it comes with the first agent)"
        ) from None
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}; name the agents' folder with --folder") from None
    for line in _passed_over(folder, look):
        print(line, file=sys.stderr)
    return look.reports


def _passed_over(folder: Path, look: Look) -> Iterator[str]:
    """What bears a report's name and is not shown, a line for each reason."""
    for why, names in look.skipped.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"gpufrag: {one_line(str(folder / names[0]))}{more}: not shown, {WHY[why]}"
