"""`gpufrag run --restartable` as a process with its control socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpufrag
from gpufrag.wire.supervised_job import SOCKET, SupervisedJob, decode
from unix_sockets import connect

EXPORTER = Path(gpufrag.__file__).parents[1]
PATIENCE_S = 60.0
JOB = """
import os, signal, sys, time
log = open(os.environ["LOG"], "a", buffering=1)
say = lambda text: log.write(text + "\\n")
def received(number, frame):
    say(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(CODE)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, received)
say(f"count {os.environ['GPUFRAG_RESTART_COUNT']}")
say(f"pid {os.getpid()}")
say("ready")
while True:
    signal.pause()
"""
READY = "echo ready >> $LOG; while :; do sleep 0.1; done"


def job(code: int = 3) -> list[str]:
    return ["--", sys.executable, "-S", "-c", JOB.replace("CODE", str(code))]


def pids(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("pid ")]


def eventually(condition: Callable[[], Any], otherwise: Callable[[], str] = lambda: "it did not happen") -> Any:
    """Return the first true answer. Fails after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.02)
    raise AssertionError(otherwise())


class Supervised:
    """`words` follow `gpufrag run --restartable`. The job writes lines into `log`, whose path is in $LOG."""

    def __init__(self, folder: Path, *words: str, **how: Any) -> None:
        self.folder, self.log = folder / "agents", folder / "log"
        self.folder.mkdir(exist_ok=True)
        self.log.touch()
        path = os.pathsep.join(filter(None, [str(EXPORTER), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "LOG": str(self.log), "GPUFRAG_DIR": str(self.folder)}
        command = [sys.executable, "-m", "gpufrag", "run", "--restartable", *words]
        self.errors = (folder / "stderr").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(command, env=environment, **{"stderr": self.errors, **how})

    @property
    def lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()

    def until(self, line: str, times: int = 1) -> None:
        def written() -> bool:
            found = self.lines.count(line) >= times
            assert found or self.process.poll() is None, f"{self.process.returncode}, {self.lines}, {self.stderr}"
            return found

        eventually(written)

    @property
    def stderr(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    @property
    def socket(self) -> Path:
        found: list[Path] = eventually(lambda: list(self.folder.glob(f"*{SOCKET}")))
        (path,) = found
        return path

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        with connect(self.socket) as caller, caller.makefile() as answers:
            caller.sendall(json.dumps({"command": command, **fields}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(answers.read())
            return answer

    def restart(self, line: str = "ready") -> None:
        """Order the first restart, and wait until the job has written `line` again."""
        assert self.ask("restart", restarts=0)["ok"]
        self.until(line, 2)

    @property
    def job(self) -> SupervisedJob:
        return decode(self.ask("job")["job"])

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.errors.close()


def state(pid: int) -> str:
    """As in /proc: S sleeps, T is stopped, Z is a zombie; X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"
