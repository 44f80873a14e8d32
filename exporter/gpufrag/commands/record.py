"""gpufrag record: some steps of a running job, in a file that measure, whatif, replay and torch's viewer read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadInput, NewerVersion, Unavailable, UsageError
from ..units import argument, format_bytes, parse_duration
from ..wire import sample
from ..wire.control_client import ControlError, NotListening, ask_all
from ..wire.folder import FileName, open_plain, to_read, write_file
from .arguments import folder_name

MARGIN = 30.0
"""Seconds to write the file, in addition to the timeout of the recording."""
MAX_FILE = 2 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", nargs="?", type=int, help="the training process")
    parser.add_argument("--rank", metavar="R", type=int, help="record the process of this rank")
    parser.add_argument(
        "--all-ranks", action="store_true", help="record all processes, one file each, named after its rank or pid"
    )
    parser.add_argument("--steps", metavar="N", type=int, default=1, help="steps to record (default: 1)")
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="also record the Python stack of each allocation; slows these steps down, and torch may pause the job for "
        "5 to 10 seconds to load its stack resolver",
    )
    parser.add_argument(
        "--wait",
        metavar="DURATION",
        type=argument(parse_duration),
        default=120.0,
        help="how long to wait for these steps to finish (default: 2m)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="pickle file to write")
    parser.add_argument(
        "--folder", metavar="DIR", type=argument(folder_name), help="the agents' folder (default: $GPUFRAG_DIR)"
    )


def run(options: argparse.Namespace) -> int:
    if (options.pid is not None) + (options.rank is not None) + options.all_ranks != 1:
        raise UsageError("name one process by PID or --rank, or use --all-ranks")
    if options.steps < 1:
        raise UsageError(f"--steps must be at least 1 (got {options.steps})")
    folder = options.folder or to_read()
    processes = _processes(folder, options)
    paths = {folder / name.socket: (name, label) for name, label in processes}
    request = {"command": "record", "steps": options.steps, "stacks": options.stacks, "timeout": options.wait}
    answers = ask_all(list(paths), request, options.wait + MARGIN, pids={path: paths[path][0].pid for path in paths})
    failures = []
    for path, answer in answers.items():
        name, label = paths[path]
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


def _processes(folder: Path, options: argparse.Namespace) -> Sequence[tuple[FileName, str]]:
    """Return the chosen processes with a distinct suffix for each file. Raises Unavailable if there is none."""
    try:
        names = [name for entry in folder.iterdir() if (name := FileName.parse(entry.name)) and entry.suffix == ".json"]
    except OSError as error:
        raise Unavailable(f"cannot read the agents' folder {folder}: {error.strerror}; see --folder") from None
    found = []
    for name in sorted(names):
        if options.pid not in (None, name.pid):
            continue
        rank = _rank(folder / name.sample)
        if options.rank in (None, rank):
            found.append((name, f"rank{rank}" if rank is not None else f"pid{name.pid}"))
    if not found:
        raise Unavailable(f"no such process has an agent in {folder}; see --folder")
    return found


def _rank(path: Path) -> int | None:
    try:
        with open_plain(path) as file:
            return sample.decode(file.read(sample.MAX_BYTES + 1)).identity.rank
    except (OSError, BadInput, NewerVersion):
        return None


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
