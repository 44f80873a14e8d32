"""Which process this is: host, pid, start, and its place in the job as the launcher's environment has it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..wire.error_counter import ErrorCounter
from ..wire.sample import Identity

MAX_DIGITS = 19
"""A longer number does not fit into a sample, whose integers have 64 bits."""


class Launcher(NamedTuple):
    """The variables in which a launcher sets each process's place; None for one that it does not set."""

    name: str
    rank: str
    local_rank: str | None = None
    world_size: str | None = None


LAUNCHERS = (
    Launcher("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("MPICH, Intel MPI", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    Launcher("Kubernetes indexed Job", "JOB_COMPLETION_INDEX"),
)
"""The first whose rank is set provides all three: values of several launchers must not be mixed."""


def identify(
    environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc"), errors: ErrorCounter | None = None
) -> Identity:
    """Return this process as far as it is known now. An impossible number is left out and counted in `errors`."""
    if errors is not None:
        for variable in (name for launcher in LAUNCHERS for name in launcher[1:] if name):
            if _too_long(environment.get(variable, "")):
                errors.note("identity", f"{variable} is too long for a rank", "it is left out; check the launcher")
    return with_rank(Identity(socket.gethostname(), os.getpid(), start_of("self", proc)), environment)


def with_rank(identity: Identity, environment: Mapping[str, str] = os.environ) -> Identity:
    """Return the same process with its place from the current environment."""
    launcher = next((row for row in LAUNCHERS if _number(environment, row.rank) is not None), None)
    if launcher is None:
        return identity
    return replace(
        identity,
        rank=_number(environment, launcher.rank),
        local_rank=_number(environment, launcher.local_rank),
        world_size=_number(environment, launcher.world_size),
    )


def start_of(process: str, proc: Path = Path("/proc")) -> float:
    """When the process (a pid, or "self") was started, to the kernel's tick; now, if that cannot be read."""
    try:
        stat = (proc / process / "stat").read_text()
        boot = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime "))
        ticks = int(stat.rpartition(")")[2].split()[19])  # the command may contain spaces and brackets
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return time.time()


def _number(environment: Mapping[str, str], variable: str | None) -> int | None:
    text = environment.get(variable, "") if variable else ""
    return int(text) if text.isdecimal() and not _too_long(text) else None


def _too_long(text: str) -> bool:
    return text.isdecimal() and len(text) > MAX_DIGITS
