"""Choosing the processes of a command by PID, --rank or --all-ranks, from the agents' folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput, NewerVersion, Unavailable, UsageError
from ..units import argument
from ..wire import sample
from ..wire.folder import FileName, open_plain, to_read
from .arguments import FOLDER_HELP, folder_name


class Process(NamedTuple):
    """A process with an agent; it may have ended."""

    name: FileName
    rank: int | None

    @property
    def label(self) -> str:
        """For file names: distinct in one job."""
        return f"rank{self.rank}" if self.rank is not None else f"pid{self.name.pid}"


def add_arguments(parser: argparse.ArgumentParser, verb: str, all_ranks: str) -> None:
    """`verb` and `all_ranks` are for the help."""
    parser.add_argument("pid", metavar="PID", nargs="?", type=int, help="pid of the training process")
    parser.add_argument("--rank", metavar="R", type=int, help=f"{verb} the process of this rank")
    parser.add_argument("--all-ranks", action="store_true", help=all_ranks)
    parser.add_argument("--folder", metavar="DIR", type=argument(folder_name), help=FOLDER_HELP)


def folder_of(options: argparse.Namespace) -> Path:
    """Raises UsageError unless exactly one of the three ways to choose processes is given."""
    if (options.pid is not None) + (options.rank is not None) + options.all_ranks != 1:
        raise UsageError("name one process by PID or --rank, or use --all-ranks")
    folder: Path = options.folder or to_read()
    return folder


def find(folder: Path, options: argparse.Namespace) -> list[Process]:
    """Return the chosen processes. Raises Unavailable if there is none."""
    try:
        names = [name for entry in folder.iterdir() if (name := FileName.parse(entry.name)) and entry.suffix == ".json"]
    except OSError as error:
        raise Unavailable(
            f"cannot read the agents' folder {folder}: {error.strerror}; choose another with --folder"
        ) from None
    chosen = [name for name in sorted(names) if options.pid in (None, name.pid)]
    ranked = [Process(name, _rank(folder / name.sample)) for name in chosen]
    found = [process for process in ranked if options.rank in (None, process.rank)]
    if not found:
        which = "any process" if options.all_ranks else f"rank {options.rank}"
        which = which if options.pid is None else f"process {options.pid}"
        raise Unavailable(
            f"no agent of {which} in {folder}; start the job with gpufrag run, or name its folder with --folder"
        )
    return found


def _rank(path: Path) -> int | None:
    try:
        with open_plain(path) as file:
            return sample.decode(file.read(sample.MAX_BYTES + 1)).identity.rank
    except (OSError, BadInput, NewerVersion):
        return None
