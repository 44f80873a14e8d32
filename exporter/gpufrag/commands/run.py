"""gpufrag run -- CMD: CMD with the agent inside every Python process of it that uses a GPU.

With --restartable this process stays, as the parent that can start CMD again.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import gpufrag

from ..agent.settings import AgentSettings, share, size
from ..errors import Unavailable, UsageError
from ..units import argument, parse_duration
from ..wire.folder import VARIABLE, to_write
from .arguments import folder_name

if TYPE_CHECKING:
    from ..supervisor.supervisor import Wishes

PACKAGE = Path(gpufrag.__file__).resolve().parent
SHIM = PACKAGE / "shim"
MAX_NAME = 200
ANCHOR = (
    "share of each device, such as 20%%, that every process reserves in one piece when it first uses it: a large "
    "request later finds a place. It costs that memory to whatever else runs there (docs/injection.md); off by default"
)

LEAK = "memory that grows by more than this a step (a minute, in a process without steps) is called a leak (1MB)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "gpufrag run [--folder DIR] [--interval SECONDS] [--budget SHARE] [--anchor SHARE] [--leak-threshold SIZE] "
        "[--restartable [--name NAME] [--grace DURATION] [--in-place]] -- CMD ..."
    )
    parser.add_argument(
        "--folder", metavar="DIR", type=argument(folder_name), help=f"where the sidecar finds the ranks (${VARIABLE})"
    )
    parser.add_argument("--interval", metavar="SECONDS", type=float, help="least time between two heap snapshots (10)")
    parser.add_argument("--budget", metavar="SHARE", type=float, help="most time that snapshots may take (0.001)")
    parser.add_argument("--anchor", metavar="SHARE", type=_share, help=ANCHOR)
    parser.add_argument("--leak-threshold", metavar="SIZE", type=_size, help=LEAK)
    parser.add_argument("--restartable", action="store_true", help="let gpufrag restarter start CMD again on this host")
    parser.add_argument("--name", metavar="NAME", help="what alerts call the job (label job_name); default its script")
    parser.add_argument("--grace", metavar="DURATION", help="from SIGTERM to SIGKILL, at a restart (60s)")
    parser.add_argument(
        "--in-place", action="store_true", help="restart torchrun's workers alone, by its --max-restarts"
    )
    parser.add_argument("job", metavar="CMD ...", nargs=argparse.REMAINDER, help="the command and its arguments")


def run(options: argparse.Namespace) -> int:
    """Become CMD, or the parent of it. Raises Unavailable where it cannot be started."""
    job = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not job:
        raise UsageError("no command given; write it after --, as in: gpufrag run -- python train.py")
    wishes = _restart_wishes(options, job)
    environment = dict(os.environ) | _wishes(options) | injected(os.environ)
    if options.folder and wishes is None:
        _warn_of(environment)
    sys.stdout.flush()
    sys.stderr.flush()
    if "/" not in job[0] and shutil.which(job[0]) is None:
        raise Unavailable(f"cannot run {job[0]!r}: no such command on PATH; check its name")
    with _refusals(job[0]):
        return _become(job, environment) if wishes is None else _supervise(job, environment, wishes)


def _warn_of(environment: Mapping[str, str]) -> None:
    """Only a warning: the job matters more, and it may run elsewhere (srun), where the folder is a good one."""
    try:
        to_write(environment)
    except Unavailable as error:
        print(f"gpufrag: {error}; the job runs without being seen from here", file=sys.stderr)


def _become(job: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Same pid, same terminal, every signal its own."""
    os.execvpe(job[0], job, environment)


def _supervise(job: list[str], environment: Mapping[str, str], wishes: Wishes) -> int:
    from ..supervisor.command import end_as
    from ..supervisor.supervisor import Supervisor

    folder = to_write(environment).absolute()
    return end_as(Supervisor(job, {**environment, VARIABLE: str(folder)}, wishes, folder).run())


def _restart_wishes(options: argparse.Namespace, job: list[str]) -> Wishes | None:
    """None where the job is not to be restarted."""
    if not options.restartable:
        if options.name is not None or options.grace is not None or options.in_place:
            raise UsageError("--name, --grace and --in-place are of a job that can be restarted; add --restartable")
        return None
    from ..supervisor.supervisor import Wishes

    grace_s = Wishes.grace_s if options.grace is None else _duration(options.grace)
    if grace_s <= 0:
        raise UsageError(f"--grace is {options.grace}: it must be above 0, such as 60s")
    name = name_of(job) if options.name is None else options.name
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise UsageError(f"{name!r:.40} cannot be the job's name: give 1 to {MAX_NAME} printable letters by --name")
    return Wishes(name, grace_s, options.in_place)


def name_of(job: Sequence[str]) -> str:
    """`train` of `torchrun --nproc-per-node 8 train.py`; the command itself where it has no script."""
    script = next((word for word in job if word.endswith(".py")), job[0])
    return Path(script).name.removesuffix(".py") or "job"


@contextmanager
def _refusals(command: str) -> Iterator[None]:
    """The system's, as errors of ours."""
    try:
        yield
    except FileNotFoundError:
        raise Unavailable(f"cannot run {command!r}: no such file, or its interpreter is missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
            raise Unavailable(f"cannot run {command!r}: no program; begin a script with #!/bin/sh, or run sh") from None
        what = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"cannot run {command!r}: {what}; give a program that may be executed") from None


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


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"--grace: {error}") from None


def _wishes(options: argparse.Namespace) -> dict[str, str]:
    """What the flags say, as the variables by which every process of the job learns it."""
    wishes = ("interval", "budget", "anchor", "leak_threshold")
    given = {name: getattr(options, name) for name in wishes if getattr(options, name) is not None}
    AgentSettings(**given)  # a value that cannot be is told here, once, and not by every process of the job
    told = {f"GPUFRAG_{name.upper()}": str(value) for name, value in given.items()}
    return told | ({VARIABLE: str(options.folder.absolute())} if options.folder else {})
