"""Parents and children as Linux shows them in /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def descendants(ancestor: int, proc: Path = PROC) -> list[int]:
    """Return all living descendants, parents before children. Zombies do not count."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir(proc):
        if name.isdigit() and (status := _status(int(name), proc)) and status[0] not in "ZX":
            children[status[1]].append(int(name))
    found = [ancestor]
    for pid in found:  # grows meanwhile
        found += children[pid]
    return found[1:]


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    status = _status(pid, proc)
    return status[1] if status else None


def environment_of(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Return the environment that the process started with; empty if it is gone or may not be read."""
    with suppress(OSError):
        entries = (proc / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        return {name: value for name, _, value in (entry.partition("=") for entry in entries) if name}
    return {}


def _status(pid: int, proc: Path) -> tuple[str, int] | None:
    """State and parent; None for a process that is gone."""
    with suppress(OSError):
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1])
    return None
