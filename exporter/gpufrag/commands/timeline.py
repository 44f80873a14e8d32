"""`gpufrag timeline`: memory over a recorded trace, and what was live at the worst moment."""

from __future__ import annotations

import argparse
import sys

from ..errors import BadInput
from ..wire.codec import dumps
from .explain import add_device_arguments, profiles, read, write_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{parser.description}. reservable: memory that the process can still reserve. worst: the highest ratio of the "
        "moments with more than 5% of the limit free, or the most stranded memory if there is none."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="snapshot with history (torch.cuda.memory._record_memory_history); - for standard input",
    )
    add_device_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ..reports import explain as report
    from ..reports import terminal
    from ..snapshot_file import name_of

    name, raw = name_of(options.file), read(options.file)
    explained = [each for each in profiles(raw, name, options) if each.profile.events]
    if not explained:
        from ..snapshot_file.recording import HOW

        raise BadInput(f"{name}: has no history; {HOW}")
    write_files(explained, raw, options)
    found = [each.profile for each in explained]
    if options.json:
        print(dumps({"file": name, "devices": list(map(report.timeline_record, found))}, 2))
    else:
        bold = terminal.bold(sys.stdout)
        print("\n\n".join(report.timeline_text(profile, name, bold) for profile in found))
    return 0
