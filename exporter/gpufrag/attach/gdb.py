"""Asks a Python older than 3.14 by way of gdb; its only user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import Unavailable
from .target import Functions

SCRIPT = Path(__file__).with_name("in_gdb.py")
LIMIT = 15.0
"""Seconds for gdb as a whole; the process stands still for a small part of them."""
GRACE = 5.0
"""Seconds for each of the ways to end gdb before the next one is taken."""
SETTINGS = ("auto-load off", "auto-solib-add off", "debuginfod enabled off", "print thread-events off")


def find() -> str:
    """The path of a gdb that has Python. Raises Unavailable."""
    if (gdb := shutil.which("gdb")) is None:
        raise Unavailable("gdb is not installed here, and a Python before 3.14 needs it: apt-get install gdb")
    probe = subprocess.run(
        [gdb, "--batch", "-nx", "-ex", "python print(6 * 7)"], text=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    if probe.stdout.strip() != "42":
        raise Unavailable(f"{gdb}: built without Python; install the full gdb (not gdb-minimal)")
    return gdb


def ask(gdb: str, pid: int, functions: Functions, code: str, limit: float = LIMIT) -> None:
    """Have the process run `code` when it next may. Raises Unavailable, and then nothing is left in the process."""
    settings = [word for setting in SETTINGS for word in ("-iex", f"set {setting}")]
    wanted = {
        "pid": pid,
        "mmap": functions.mmap,
        "add": functions.add_pending_call,
        "run": functions.run_string,
        "code": code,
    }
    process = subprocess.Popen(
        [gdb, "--batch", "-nx", *settings, "-x", str(SCRIPT)],
        env={**os.environ, "GPUFRAG_ATTACH": json.dumps(wanted)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a Ctrl-C is ours to hand on: gdb must not end in the middle of a call
    )
    _judge(pid, _finish(process, limit))


def _finish(process: subprocess.Popen[str], limit: float) -> str:
    """All that it has said. A gdb that hangs is made to let go; it is never killed while it has a call underway."""
    for number in (None, signal.SIGINT, signal.SIGTERM):
        if number is not None:
            process.send_signal(number)
        try:
            return process.communicate(timeout=limit if number is None else GRACE)[0]
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=GRACE)
            raise
    raise Unavailable(f"gdb (process {process.pid}) does not end; end it with: kill {process.pid}")


def _judge(pid: int, output: str) -> None:
    told = list(_told(output))
    error = next((what["error"] for what in told if "error" in what), None)
    if error is None and {"stage": "asked"} in told:
        return
    if not (Path("/proc") / str(pid)).exists():
        raise Unavailable(f"process {pid} ended meanwhile")
    what = (error or output.strip()).rpartition("\n")[2] or "gdb ended without a word"
    if "already traced" in output:
        what = "another debugger, or another `gpufrag attach`, has it just now; try again"
    elif "not permitted" in output:
        what += " (a seccomp profile or security module forbids ptrace: give the container the capability SYS_PTRACE)"
    raise Unavailable(f"process {pid} was not asked, and goes on as before: {what}")


def _told(output: str) -> Iterator[Mapping[str, Any]]:
    for line in output.splitlines():
        if line.startswith("gpufrag {"):
            yield json.loads(line.removeprefix("gpufrag "))
