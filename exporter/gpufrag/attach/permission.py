"""Whether the kernel will let this command stop another process, and which of its conditions is missing."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SYS_PTRACE = 19  # the number of the capability
_REMEDY = "run this command as that user, as root, or with the capability CAP_SYS_PTRACE"


class Caller(NamedTuple):
    """Who asks: the user, and whether he has the capability CAP_SYS_PTRACE."""

    uid: int
    capable: bool

    @classmethod
    def current(cls, proc: Path = Path("/proc")) -> Caller:
        capabilities = int(status_of("self", proc).get("CapEff", "0"), 16)
        return cls(os.getuid(), bool(capabilities >> _SYS_PTRACE & 1))


def status_of(process: str, proc: Path) -> Mapping[str, str]:
    """The kernel's account of a process. Raises OSError where there is none."""
    lines = (proc / process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def obstacle(pid: int, caller: Caller, proc: Path = Path("/proc")) -> str | None:
    """What forbids to trace the process; None where nothing is known to. Raises OSError where it has ended."""
    status = status_of(str(pid), proc)
    if (tracer := status.get("TracerPid", "0")) != "0":
        return f"it is already traced, by process {tracer} (a debugger, strace); end that first"
    if (scope := _yama_scope(proc)) == 3:
        return "kernel.yama.ptrace_scope is 3: nobody may trace, until the machine is started anew"
    if caller.capable:
        return None
    users = [int(number) for number in status["Uid"].split()[:3]]
    if any(user != caller.uid for user in users):
        return f"it belongs to user {_name(users[1])}, this command runs as {_name(caller.uid)}; {_REMEDY}"
    if (proc / str(pid)).stat().st_uid != users[1]:
        return f"it has changed its user or its capabilities, so that only CAP_SYS_PTRACE may trace it; {_REMEDY}"
    if scope > 0:
        return f"kernel.yama.ptrace_scope is {scope}: it takes the capability CAP_SYS_PTRACE, or root"
    return None


def _yama_scope(proc: Path) -> int:
    """0, as good as none, on kernels without this module."""
    try:
        return int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)
