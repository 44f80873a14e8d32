"""The result of an attach: the payload's report, then the agent's control socket."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..agent.identity import start_of
from ..errors import Unavailable
from ..wire.control_client import listens
from ..wire.folder import SHARED, VARIABLE, FileName, open_plain
from .target import Target, is_visible

MAX_REPORT = 4096
POLL_S = 0.05
START_TOLERANCE_MS = 1000
"""Two readings of one start time differ if the clock was set meanwhile."""

Found = TypeVar("Found")


@contextmanager
def report_path(target: Target) -> Iterator[Path]:
    """Yield a path in a temporary folder of the target's own user. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="gpufrag-attach-") as folder:
        if not is_visible(target.pid, Path(folder).absolute()):
            raise Unavailable(
                f"process {target.pid} cannot access {Path(folder).parent}; set TMPDIR to a folder that both can access"
            )
        if os.geteuid() != target.uid:
            os.chown(folder, target.uid, target.gid)
        yield Path(folder, "report.json")


def read_report(file: Path) -> Mapping[str, Any] | None:
    """None until it is there. The folder is another user's, so only a small plain file with a JSON object counts."""
    try:
        with open_plain(file) as opened:
            report = json.loads(opened.read(MAX_REPORT))
    except (OSError, ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def agent_socket(target: Target, shared: Path = SHARED) -> Path | None:
    """Return the control socket of the target's agent, if one listens."""
    start = start_of(str(target.pid)) * 1000
    for path in (path for folder in _folders(target, shared) for path in folder.glob(f"*-{target.pid}-*.sock")):
        name = FileName.parse(path.name)
        if name is not None and name.pid == target.pid and abs(name.start - start) < START_TOLERANCE_MS:
            with suppress(PermissionError):
                if listens(path):
                    return path
    return None


def poll(condition: Callable[[], Found | None], seconds: float) -> Found | None:
    """Return the condition's first result that is not None; None after `seconds`."""
    deadline = time.monotonic() + seconds
    while (found := condition()) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return found


def _folders(target: Target, shared: Path) -> list[Path]:
    """Where wire.folder.to_write may have put it in the target; a relative path starts at its first directory."""
    if named := target.environment.get(VARIABLE):
        return [Path(f"/proc/{target.pid}/cwd", named)]
    set_by_user = (target.environment.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    places = dict.fromkeys(Path(place) for place in (*set_by_user, "/tmp", "/var/tmp", "/usr/tmp") if place)
    return [shared, *(place / f"gpufrag-{target.uid}" for place in places)]
