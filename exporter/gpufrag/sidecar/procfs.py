"""The processes behind NVML's pids, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..wire.folder import VARIABLE
from ..wire.processes import environment_of

PROC = Path("/proc")
AGENT_VARIABLE = "GPUFRAG_AGENT_PATH"
SHIM = "gpufrag/shim"
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the kernel's fixed number (PROC_PID_INIT_INO)


@dataclass(frozen=True)
class HostProcess:
    """A process: its pid in its own, innermost namespace, and its start time."""

    pid: int
    start: float


@dataclass(frozen=True)
class VisibleProcesses:
    """The processes that the sidecar can see."""

    by_pid: Mapping[int, HostProcess] = field(default_factory=dict)
    """By pid in the sidecar's namespace, for the pids that NVML listed."""
    complete: bool = False
    """Whether no process can hide: the sidecar is in the host's first pid namespace."""


def visible_processes(pids: Iterable[int], proc: Path = PROC) -> VisibleProcesses:
    """Return the processes with these pids, without those that are gone or hidden."""
    booted = _boot_time(proc)
    found = {pid: process for pid in pids if booted is not None and (process := _process(proc / str(pid), booted))}
    with suppress(OSError):
        return VisibleProcesses(found, os.readlink(proc / "self/ns/pid") == FIRST_PID_NAMESPACE)
    return VisibleProcesses(found)


def _process(folder: Path, booted: float) -> HostProcess | None:
    try:
        status = (folder / "status").read_text(errors="replace")
        stat = (folder / "stat").read_text(errors="replace")
    except OSError:  # it ended, or /proc hides it
        return None
    after_name = stat.rpartition(")")[2].split()  # the name may contain blanks and brackets
    start = booted + int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    # the pid in each namespace, from the reader's inwards; kernels before 4.1 have no such line
    line = next((line for line in status.splitlines() if line.startswith("NSpid:")), folder.name)
    return HostProcess(int(line.split()[-1]), start)


def _boot_time(proc: Path) -> float | None:
    try:
        lines = (proc / "stat").read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)


@dataclass(frozen=True)
class AgentProcess:
    """A Python process that loads the agent. `folder` is its GPUFRAG_DIR, if set."""

    pid: int
    folder: str | None


def agent_processes(proc: Path = PROC) -> list[AgentProcess]:
    """Return the visible Python processes that were started with the agent, whether they use a GPU or not."""
    found = []
    for entry in sorted(proc.iterdir() if proc.is_dir() else (), key=lambda path: path.name):
        if not entry.name.isdecimal():
            continue
        environment = environment_of(int(entry.name), proc)
        folders = environment.get("PYTHONPATH", "").split(os.pathsep)
        if AGENT_VARIABLE not in environment and not any(folder.rstrip("/").endswith(SHIM) for folder in folders):
            continue
        with suppress(OSError):
            program = (entry / "cmdline").read_bytes().split(b"\0")[0]
            if os.path.basename(program).startswith(b"python"):
                found.append(AgentProcess(int(entry.name), environment.get(VARIABLE) or None))
    return found
