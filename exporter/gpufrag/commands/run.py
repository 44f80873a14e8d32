"""gpufrag run -- CMD: CMD with the agent inside every Python process of it that uses a GPU."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import gpufrag

from ..agent.settings import AgentSettings, share, size
from ..errors import Unavailable, UsageError
from ..folder import VARIABLE

PACKAGE = Path(gpufrag.__file__).resolve().parent
SHIM = PACKAGE / "shim"
ANCHOR = (
    "share of each device, such as 20%%, that every process reserves in one piece when it first uses it: a large "
    "request later finds a place. It costs that memory to whatever else runs there (docs/injection.md); off by default"
)

LEAK = "memory that grows by more than this a step (a minute, in a process without steps) is called a leak (1MB)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "gpufrag run [--folder DIR] [--interval SECONDS] [--budget SHARE] [--anchor SHARE] [--leak-threshold SIZE] "
        "-- CMD ..."
    )
    parser.add_argument("--folder", metavar="DIR", type=Path, help=f"where the sidecar finds the ranks (${VARIABLE})")
    parser.add_argument("--interval", metavar="SECONDS", type=float, help="least time between two heap snapshots (10)")
    parser.add_argument("--budget", metavar="SHARE", type=float, help="most time that snapshots may take (0.001)")
    parser.add_argument("--anchor", metavar="SHARE", type=_share, help=ANCHOR)
    parser.add_argument("--leak-threshold", metavar="SIZE", type=_size, help=LEAK)
    parser.add_argument("job", metavar="CMD ...", nargs=argparse.REMAINDER, help="the command and its arguments")


def run(options: argparse.Namespace) -> NoReturn:
    """Become CMD: same pid, same terminal, every signal its own. Raises Unavailable where it cannot be started."""
    job = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not job:
        raise UsageError("no command given; write it after --, as in: gpufrag run -- python train.py")
    environment = dict(os.environ) | _wishes(options) | injected(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    if "/" not in job[0] and shutil.which(job[0]) is None:
        raise Unavailable(f"cannot run {job[0]!r}: no such command on PATH; check its name")
    try:
        os.execvpe(job[0], job, environment)
    except FileNotFoundError:
        raise Unavailable(f"cannot run {job[0]!r}: no such file, or its interpreter is missing") from None
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"cannot run {job[0]!r}: {what}; give a program that may be executed") from None


def injected(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that put the agent into Python processes; what PYTHONPATH held before stays in it."""
    others = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if not _is_shim(entry)]
    path = os.pathsep.join([str(SHIM), *others]) if any(others) else str(SHIM)
    return {"PYTHONPATH": path, "GPUFRAG_AGENT_PATH": str(PACKAGE.parent)}


def _is_shim(entry: str) -> bool:
    """Of this copy or of another one (in an image, from an init container): one shim is enough."""
    return Path(entry).parts[-2:] == SHIM.parts[-2:]


def _share(text: str) -> float:
    try:
        return share(text)
    except ValueError:
        raise UsageError(f"--anchor is {text!r}: it must be a share of the device, such as 20%") from None


def _size(text: str) -> int:
    return size(text, "--leak-threshold")


def _wishes(options: argparse.Namespace) -> dict[str, str]:
    """What the flags say, as the variables by which every process of the job learns it."""
    wishes = ("interval", "budget", "anchor", "leak_threshold")
    given = {name: getattr(options, name) for name in wishes if getattr(options, name) is not None}
    AgentSettings(**given)  # a value that cannot be is told here, once, and not by every process of the job
    told = {f"GPUFRAG_{name.upper()}": str(value) for name, value in given.items()}
    return told | ({VARIABLE: str(options.folder.absolute())} if options.folder else {})
