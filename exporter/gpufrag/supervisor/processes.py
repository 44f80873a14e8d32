"""Parent and children as Linux has them: who descends from whom, who inherits orphans, who ends with whom."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..errors import Unavailable
from ..wire.supervised_job import Elastic

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PROC = Path("/proc")


def adopt_orphans() -> None:
    """Processes whose parents end become ours, so that none of a job can be lost. Raises Unavailable off Linux."""
    if _prctl is None or _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Unavailable("a job can be supervised on Linux only; leave --restartable out")


def end_with_parent(parent: int) -> None:
    """In a new child, before it becomes its command: SIGTERM when the thread that made it ends, however it ends."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it ended before that was said
        os.kill(os.getpid(), signal.SIGTERM)


def descendants(ancestor: int, proc: Path = PROC) -> list[int]:
    """All of them that live, parents before their children; who has ended and waits for its parent does not."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (state, parent) in _processes(proc):
        if state not in "ZX":
            children[parent].append(pid)
    found = [ancestor]
    for pid in found:  # grows meanwhile
        found += children[pid]
    return found[1:]


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    status = _status(pid, proc)
    return status[1] if status else None


def elastic(pid: int, proc: Path = PROC) -> Elastic | None:
    """What torchrun told this process when it started it; None where it is no worker of torchrun's, or is gone."""
    told = _environment(pid, proc)
    numbers = [told.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in numbers):
        return None
    return Elastic(int(numbers[0]), int(numbers[1]))


def _processes(proc: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    for name in os.listdir(proc):
        if name.isdigit() and (status := _status(int(name), proc)):
            yield int(name), status


def _status(pid: int, proc: Path) -> tuple[str, int] | None:
    """State and parent; None for one that is gone."""
    with suppress(OSError):
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1])
    return None


def _environment(pid: int, proc: Path) -> Mapping[str, str]:
    with suppress(OSError):
        entries = (proc / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.partition("=")[::2] for entry in entries)
    return {}


def _find_prctl() -> ctypes._NamedFuncPointer | None:
    """Before any fork: a new child should do nothing but call it."""
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl
    return None


_prctl = _find_prctl()
