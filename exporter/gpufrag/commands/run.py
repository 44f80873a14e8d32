"""gpufrag run -- CMD: loads the agent into every Python process that CMD starts, then execs CMD.

With --restartable this process stays, as the parent that can start CMD again.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import gpufrag

from ..agent.settings import AgentSettings, anchor, size
from ..errors import Unavailable, UsageError
from ..units import argument, parse_duration
from ..wire.folder import VARIABLE, to_write
from .arguments import folder_name

if TYPE_CHECKING:
    from ..supervisor.supervisor import RestartOptions

PACKAGE = Path(gpufrag.__file__).resolve().parent
SHIM = PACKAGE / "shim"
MAX_NAME = 200
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""At its start; a command would inherit that, and a shell's pipes would not end."""
SETTINGS = ("interval", "budget", "anchor", "leak_threshold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "gpufrag run [--folder DIR] [--interval SECONDS] [--budget SHARE] [--anchor SIZE] [--leak-threshold SIZE] "
        "[--summary | --restartable [--name NAME] [--grace DURATION] [--in-place] [--defragment]] -- CMD ..."
    )
    add = parser.add_argument
    add(
        "--folder",
        metavar="DIR",
        type=argument(folder_name),
        help=f"folder that the sidecar reads (default: ${VARIABLE}, else /run/gpufrag if it is writable, else "
        "gpufrag-UID in the temporary directory)",
    )
    add("--interval", metavar="SECONDS", type=float, help="minimum seconds between memory snapshots (default: 10)")
    add("--budget", metavar="SHARE", type=float, help="maximum share of time for snapshots (default: 0.001)")
    add(
        "--anchor",
        metavar="SIZE",
        type=lambda text: anchor(text, "--anchor"),
        help="reserve this much of the device, such as 20GiB or 20%%, as one block for later large requests; other "
        "processes cannot use it (default: off)",
    )
    add(
        "--leak-threshold",
        metavar="SIZE",
        type=lambda text: size(text, "--leak-threshold"),
        help="memory growth per step that counts as a leak; in a process without steps, per minute (default: 1MB)",
    )
    add(
        "--summary",
        action="store_true",
        help="when CMD ends, print its peak memory, smallest memory limit, out-of-memory errors and leaks, and write "
        "an HTML report to the working directory",
    )
    add(
        "--restartable",
        action="store_true",
        help="let gpufrag restarter restart CMD on this host",
    )
    add(
        "--name",
        metavar="NAME",
        help="name of the job in its alerts, the label job_name (default: the name of its script)",
    )
    add("--grace", metavar="DURATION", help="time between SIGTERM and SIGKILL when CMD is restarted (default: 60s)")
    add("--in-place", action="store_true", help="restart only torchrun's workers; needs torchrun --max-restarts")
    add(
        "--defragment",
        action="store_true",
        help="let the restarter defragment the job first, and restart it only if that does not help",
    )
    add("job", metavar="CMD ...", nargs=argparse.REMAINDER, help="the command and its arguments")


def run(options: argparse.Namespace) -> int:
    """Exec the command, or supervise it. Raises Unavailable if it cannot be started."""
    job = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not job:
        raise UsageError("no command given; write it after --, as in: gpufrag run -- python train.py")
    restart = _restart_options(options, job)
    environment = dict(os.environ) | _settings(options) | injected(os.environ)
    if options.folder and restart is None:
        try:
            to_write(environment)
        except Unavailable as error:  # the job may run elsewhere (srun), where the folder can be used
            print(f"gpufrag: {error}; the job starts, but gpufrag does not monitor it here", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if "/" not in job[0] and shutil.which(job[0]) is None:
        raise Unavailable(f"cannot run {job[0]!r}: no such command on PATH; check its name")
    if options.summary and restart is not None:
        raise UsageError("--summary and --restartable cannot be combined; leave one out")
    with _start_errors(job[0]):
        if options.summary:
            return _summarize(job, environment)
        if restart is None:
            before = {number: signal.signal(number, signal.SIG_DFL) for number in IGNORED_BY_PYTHON}
            try:
                os.execvpe(job[0], job, environment)  # keeps this process's pid, terminal and signals
            finally:  # it could not be started
                for number, handler in before.items():
                    signal.signal(number, handler)
        return _supervise(job, environment, restart)


def _supervise(job: list[str], environment: Mapping[str, str], restart: RestartOptions) -> int:
    from ..supervisor.command import end_as
    from ..supervisor.supervisor import Supervisor

    folder = to_write(environment).absolute()
    return end_as(Supervisor(job, {**environment, VARIABLE: str(folder)}, restart, folder).run())


def _summarize(job: list[str], environment: Mapping[str, str]) -> int:
    from ..supervisor.command import end_as
    from ..supervisor.summary import run_with_summary

    folder = to_write(environment).absolute()
    report = Path(f"gpufrag-{name_of(job)}-{os.getpid()}.html").absolute()
    return end_as(run_with_summary(job, {**environment, VARIABLE: str(folder)}, folder, report))


def _restart_options(options: argparse.Namespace, job: list[str]) -> RestartOptions | None:
    if not options.restartable:
        if options.name is not None or options.grace is not None or options.in_place or options.defragment:
            raise UsageError("--name, --grace, --in-place and --defragment require --restartable; add --restartable")
        return None
    from ..supervisor.supervisor import RestartOptions

    grace_s = RestartOptions.grace_s if options.grace is None else _duration(options.grace)
    if grace_s <= 0:
        raise UsageError(f"--grace must be above 0, such as 60s (got {options.grace})")
    name = name_of(job) if options.name is None else options.name
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise UsageError(f"--name must have 1 to {MAX_NAME} printable characters (got {name!r:.40})")
    return RestartOptions(name, grace_s, options.in_place, options.defragment)


def name_of(job: Sequence[str]) -> str:
    """Return `train` for `torchrun --nproc-per-node 8 train.py`; the command's own name if it has no script."""
    script = next((word for word in job if word.endswith(".py")), job[0])
    return Path(script).name.removesuffix(".py") or "job"


@contextmanager
def _start_errors(command: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Unavailable(f"cannot run {command!r}: no such file, or its interpreter is missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
            raise Unavailable(
                f"cannot run {command!r}: not a program; start the script with #!/bin/sh or run it with sh"
            ) from None
        what = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"cannot run {command!r}: {what}; give an executable program") from None


def injected(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that load the agent into Python processes; PYTHONPATH keeps its entries."""
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    # without the shim of another copy too (of an image, or an init container): one is enough
    others = [entry for entry in entries if Path(entry).parts[-2:] != SHIM.parts[-2:]]
    path = os.pathsep.join([str(SHIM), *others]) if any(others) else str(SHIM)
    return {"PYTHONPATH": path, "GPUFRAG_AGENT_PATH": str(PACKAGE.parent)}


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"--grace: {error}") from None


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """Return the flags as variables for every process of the job."""
    given = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    AgentSettings(**given)  # report an invalid value here, once, and not in every process
    variables = {f"GPUFRAG_{name.upper()}": str(value) for name, value in given.items()}
    return variables | ({VARIABLE: str(options.folder.absolute())} if options.folder else {})
