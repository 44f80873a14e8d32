"""gpufrag record: some steps of a running job, in a file that measure, whatif, replay and torch's viewer read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import Unavailable, UsageError
from ..units import argument, format_bytes, parse_duration
from ..wire.control_client import ControlError, NotListening, ask_all
from ..wire.folder import open_plain, write_file
from . import processes

MARGIN = 30.0
"""Seconds to write the file, in addition to the timeout of the recording."""
MAX_FILE = 2 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    each = "record all processes, each to its own file, such as steps-rank0.pickle for -o steps.pickle"
    processes.add_arguments(parser, "record", each)
    parser.add_argument("--steps", metavar="N", type=int, default=1, help="steps to record (default: 1)")
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="also record the Python stack of each allocation; slows these steps down, and can pause the job for "
        "5 to 10 seconds",
    )
    parser.add_argument(
        "--wait",
        metavar="DURATION",
        type=argument(parse_duration),
        default=120.0,
        help="how long to wait for these steps to finish (default: 2m)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="pickle file to write")


def run(options: argparse.Namespace) -> int:
    folder = processes.folder_of(options)
    if options.steps < 1:
        raise UsageError(f"--steps must be at least 1 (got {options.steps})")
    paths = {folder / one.name.socket: one for one in processes.find(folder, options)}
    request = {"command": "record", "steps": options.steps, "stacks": options.stacks, "timeout": options.wait}
    pids = {path: one.name.pid for path, one in paths.items()}
    answers = ask_all(list(paths), request, options.wait + MARGIN, pids=pids)
    failures = []
    for path, answer in answers.items():
        name, label = paths[path].name, paths[path].label
        if isinstance(answer, ControlError):
            if not (options.all_ranks and isinstance(answer, NotListening)):
                failures.append(f"process {name.pid}: {answer}")
            continue
        out = options.output
        target = out.with_name(f"{out.stem}-{label}{out.suffix}") if options.all_ranks else out
        size = _fetch(folder / name.trace, target)
        print(f"{target}: {options.steps} step(s) of process {name.pid}, {format_bytes(size)}")
    for failure in failures:
        print(f"gpufrag: {failure}", file=sys.stderr)
    if len(failures) == len(answers):
        raise Unavailable("nothing was recorded")
    return 1 if failures else 0


def _fetch(source: Path, target: Path) -> int:
    """Move what the agent wrote to `target`; return its size in bytes. Raises Unavailable."""
    try:
        with open_plain(source) as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise Unavailable(f"{source} is larger than {format_bytes(MAX_FILE)}; record fewer steps")
        write_file(target, data, mode=0o600)
        source.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot move {source} to {target}: {error.strerror}; run this as the job's user") from None
    return len(data)
