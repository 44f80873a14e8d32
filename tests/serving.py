"""`gpufrag serve` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import gpufrag

PATIENCE = 20.0


class Serving:
    """One `gpufrag serve`; `log` is what it has written to stderr so far. `script` runs instead of the module."""

    def __init__(self, *arguments: str, script: str | None = None, **environment: str) -> None:
        begin = ["-m", "gpufrag"] if script is None else ["-c", script]
        command = [sys.executable, *begin, "serve", "--no-nvml", *arguments]
        paths = os.pathsep.join([str(Path(gpufrag.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        kept = {key: value for key, value in os.environ.items() if key != "GPUFRAG_DIR"}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env={**kept, "PYTHONPATH": paths, **environment}
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self._lines.append(line.decode())

    @property
    def log(self) -> str:
        return "".join(self._lines)

    @property
    def port(self) -> int:
        self.wait_for("msg=listening")
        (line,) = [line for line in self._lines if "msg=listening" in line]
        return int(line.partition("address=")[2].split()[0].rpartition(":")[2])

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_for(self, text: str, count: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.log.count(text) < count:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
