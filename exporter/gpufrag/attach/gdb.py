"""Makes a Python older than 3.14 run our code, with gdb; the only user of gdb."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from ..errors import Unavailable
from .target import Functions

SCRIPT = Path(__file__).with_name("gdb_script.py")
TIMEOUT_S = 15.0
"""For gdb as a whole; the process stands still for a small part of it."""
END_TIMEOUT_S = 5.0
"""For each way to end gdb, before the next one is tried."""
PROBE_TIMEOUT_S = 30.0
SETTINGS = ("auto-load off", "auto-solib-add off", "debuginfod enabled off", "print thread-events off")


def find() -> str:
    """Return the path of a gdb with Python. Raises Unavailable."""
    if (gdb := shutil.which("gdb")) is None:
        raise Unavailable("gdb is not installed; Python before 3.14 needs it: apt-get install gdb")
    try:
        probe = subprocess.run(
            [gdb, "--batch", "-nx", "-ex", "python print(6 * 7)"],
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot run {gdb}: {error}") from None
    if probe.stdout.strip() != "42":
        raise Unavailable(f"{gdb} was built without Python; install the full gdb (not gdb-minimal)")
    return gdb


def run(gdb: str, pid: int, functions: Functions, code: str, timeout_s: float = TIMEOUT_S) -> None:
    """Make the process run `code` when it next can. Raises Unavailable, and then nothing is left in the process."""
    settings = [word for setting in SETTINGS for word in ("-iex", f"set {setting}")]
    request = {"pid": pid, "code": code, **functions._asdict()}
    process = subprocess.Popen(
        [gdb, "--batch", "-nx", *settings, "-x", str(SCRIPT)],
        env={**os.environ, "GPUFRAG_ATTACH": json.dumps(request)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # we pass a Ctrl-C on, so that gdb does not end in the middle of a call
    )
    _check(pid, _finish(process, timeout_s))


def _finish(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Return gdb's output. A gdb that hangs is interrupted; it is never killed while a call is in progress."""
    for number in (None, signal.SIGINT, signal.SIGTERM):
        if number is not None:
            process.send_signal(number)
        try:
            return process.communicate(timeout=timeout_s if number is None else END_TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=END_TIMEOUT_S)
            raise
    raise Unavailable(f"gdb (process {process.pid}) does not end; end it with: kill {process.pid}")


def _check(pid: int, output: str) -> None:
    """Raises Unavailable unless the script reported success."""
    lines = [line.removeprefix("gpufrag ") for line in output.splitlines() if line.startswith("gpufrag {")]
    messages = [json.loads(line) for line in lines]
    error = next((message["error"] for message in messages if "error" in message), None)
    if error is None and {"stage": "asked"} in messages:
        return
    if not (Path("/proc") / str(pid)).exists():
        raise Unavailable(f"process {pid} has ended meanwhile")
    what = (error or output.strip()).rpartition("\n")[2] or "gdb ended without a message"
    if "already traced" in output:
        what = "another debugger, or another `gpufrag attach`, is attached to it; try again"
    elif "not permitted" in output:
        what += " (a seccomp profile or security module forbids ptrace: give the container the capability SYS_PTRACE)"
    raise Unavailable(f"process {pid} did not take the request and continues unchanged: {what}")
