"""What came of it: the payload's report, and then the agent itself, at its control socket."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..agent.identity import start_of
from ..errors import Unavailable
from ..wire.control_client import listens
from ..wire.folder import SHARED, VARIABLE, FileName, open_plain
from .target import Target, visible

LARGEST = 4096
PAUSE = 0.05
SAME_START = 1000
"""Milliseconds by which two readings of one start may differ: the clock may have been set meanwhile."""

Found = TypeVar("Found")


@contextmanager
def place_for_report(target: Target) -> Iterator[Path]:
    """A file's name in a folder of the target's own user, which is gone afterwards. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="gpufrag-attach-") as folder:
        if not visible(target.pid, Path(folder).absolute()):
            raise Unavailable(
                f"process {target.pid} does not see {Path(folder).parent}; set TMPDIR to a folder that it sees too"
            )
        if os.geteuid() != target.uid:
            os.chown(folder, target.uid, target.gid)
        yield Path(folder, "report.json")


def report(file: Path) -> Mapping[str, Any] | None:
    """None before it is there. The folder is another user's: what is no small plain file of JSON is no report."""
    try:
        with open_plain(file) as opened:
            data = opened.read(LARGEST)
    except OSError:
        return None
    try:
        told = json.loads(data)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def agent_socket(target: Target, shared: Path = SHARED) -> Path | None:
    """The control socket of the target's agent, if one listens."""
    for folder in _folders(target, shared):
        for path in folder.glob(f"*-{target.pid}-*.sock"):
            name = FileName.parse(path.name)
            if name is not None and _is_of(name, target) and _listens(path):
                return path
    return None


def until(condition: Callable[[], Found | None], seconds: float) -> Found | None:
    """What the condition gives as soon as it gives something; None if that takes longer."""
    deadline = time.monotonic() + seconds
    while (found := condition()) is None and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return found


def _folders(target: Target, shared: Path) -> list[Path]:
    """Where folder.to_write, in the target, may have put it; a relative one is relative to where it began."""
    if named := target.environment.get(VARIABLE):
        return [Path(f"/proc/{target.pid}/cwd", named)]
    named_ones = (target.environment.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    places = dict.fromkeys(Path(place) for place in (*named_ones, "/tmp", "/var/tmp", "/usr/tmp") if place)
    return [shared, *(place / f"gpufrag-{target.uid}" for place in places)]


def _is_of(name: FileName, target: Target) -> bool:
    return name.pid == target.pid and abs(name.start - start_of(str(target.pid)) * 1000) < SAME_START


def _listens(path: Path) -> bool:
    try:
        return listens(path)
    except PermissionError:
        return False
