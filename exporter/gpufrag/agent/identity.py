"""Who this process is: host, pid, start, and its place in the job as the launcher put it into the environment."""

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

DIGITS = 19
"""More have no place in a sample, whose whole numbers have 64 bits."""


class Launcher(NamedTuple):
    """The variables in which a launcher tells each process its place; None for what it does not tell."""

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
"""The first whose rank is set tells all three: what several launchers say must not be mixed."""


def identify(
    environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc"), trouble: ErrorCounter | None = None
) -> Identity:
    """This process, as far as it is known now. A place that can be none is absent, and noted in `trouble`."""
    if trouble is not None:
        for variable in (name for launcher in LAUNCHERS for name in launcher[1:] if name):
            if _too_long(environment.get(variable, "")):
                trouble.note("identity", f"{variable} is no number of a process", "it is left out; mend the launcher")
    return with_rank(Identity(socket.gethostname(), os.getpid(), start_of("self", proc)), environment)


def with_rank(identity: Identity, environment: Mapping[str, str] = os.environ) -> Identity:
    """The same process with its place as the environment tells it now."""
    launcher = next((row for row in LAUNCHERS if _number(environment, row.rank) is not None), None)
    if launcher is None:
        return identity
    return replace(
        identity,
        rank=_number(environment, launcher.rank),
        local_rank=_number(environment, launcher.local_rank),
        world_size=_number(environment, launcher.world_size),
    )


def _number(environment: Mapping[str, str], variable: str | None) -> int | None:
    text = environment.get(variable, "") if variable else ""
    return int(text) if text.isdecimal() and not _too_long(text) else None


def _too_long(text: str) -> bool:
    return text.isdecimal() and len(text) > DIGITS


def start_of(process: str, proc: Path = Path("/proc")) -> float:
    """When the process (a pid, or self) was started, to the kernel's tick; where that cannot be read, now."""
    try:
        stat = (proc / process / "stat").read_text()
        boot = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime "))
        ticks = int(stat.rpartition(")")[2].split()[19])  # the command may hold spaces and brackets
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return time.time()
