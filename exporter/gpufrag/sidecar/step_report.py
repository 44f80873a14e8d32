"""The page with the memory map of a rank's latest step recording, made by a low-priority process of its own.

The process runs `main`: an agent's step recording, or a pickle of `gpufrag record`, on standard input, HTML on standard
output. A recording that is broken or takes too long affects only that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path

from ..errors import BadInput, GpufragError, Unavailable, one_line
from ..wire import recording
from ..wire.folder import FileName, open_plain
from .analysis import NICENESS, limit_memory, worker_command

STEP, TRACE = "step", "trace"
TIMEOUT_S = 60.0
MAX_PAGE = 64 << 20
MAX_KEPT = 64 << 20
"""Bytes of all pages kept in memory."""


def headers() -> dict[str, str]:
    """Of the answer with a report."""
    from ..reports import html  # 4 MiB that most sidecars never need

    return {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": f"{html.policy()}; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }


class PageCache:
    """Pages by a key of any kind; drops those used longest ago. For any thread."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, bytes] = OrderedDict()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
            return self._pages.get(key)

    def put(self, key: Hashable, page: bytes) -> None:
        with self._lock:
            self._pages[key] = page
            while sum(map(len, self._pages.values())) > self._most:
                self._pages.popitem(last=False)


class StepReports:
    """For any thread; makes one report at a time."""

    def __init__(self, cache: PageCache) -> None:
        self._busy = threading.Lock()
        self._cache = cache

    def page(self, folder: Path, name: FileName) -> bytes:
        """Return the page of a rank's latest recording or snapshot. Raises Unavailable, also while another is made."""
        written = {}
        for path in (folder / name.recording, folder / name.heap):
            with suppress(OSError):
                written[path] = path.lstat().st_mtime_ns
        if not written:
            raise Unavailable("no step of this process was recorded")
        path = max(written, key=written.__getitem__)
        key = path, written[path]
        if not self._busy.acquire(timeout=TIMEOUT_S / 4):
            raise Unavailable("another report is being made; try again in a minute")
        try:
            if (page := self._cache.get(key)) is None:
                page = _make(path, f"process {name.pid} on {name.host}")
                self._cache.put(key, page)
            return page
        finally:
            self._busy.release()


def _make(path: Path, title: str) -> bytes:
    try:
        with open_plain(path) as file:
            data = file.read(recording.MAX_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"cannot read {path.name}: {error.strerror}") from None
    return make_report(STEP, data, f"last recorded step of {title}")


def make_report(kind: str, data: bytes, title: str) -> bytes:
    """Return the report of a recording. Raises Unavailable if it is damaged or takes too long."""
    command = worker_command(__name__, kind, title)
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"no report: {error}") from None
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"status {done.returncode}"
        raise Unavailable(f"no report: {one_line(reason)[:200]}")
    return done.stdout


def main(kind: str, title: str) -> int:
    os.nice(NICENESS)
    limit_memory()
    try:
        page = _of_step(title) if kind == STEP else _of_trace(title)
        if len(page) > MAX_PAGE:  # not left to the sidecar, which would have to hold it first
            raise BadInput("it is too large")
        sys.stdout.buffer.write(page)
    except (GpufragError, MemoryError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        return 1
    return 0


def _of_step(title: str) -> bytes:
    from ..reports import recorded_step

    found = recording.decode(sys.stdin.buffer.read(recording.MAX_BYTES + 1))
    if not found.devices:
        raise BadInput("the recording has no device")
    return recorded_step.render(found.devices, title)


def _of_trace(title: str) -> bytes:
    from ..reports import html
    from ..reports.explain import Explained
    from ..snapshot_file.profile import read_profiles
    from ..snapshot_file.reading import STDIN, load, without_gc

    raw = load(STDIN)
    with without_gc():
        return html.render([Explained(*each) for each in read_profiles(raw, {})], title)
