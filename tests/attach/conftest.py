"""Processes to attach to: real ones, and descriptions of some in a /proc of our own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufrag.cli import main
from gpufrag.commands.run import PACKAGE
from importable_torch import torch_path

Begin = Callable[..., "Victim"]


class Victim:
    """A Python process that prints `ready`, runs while its stdin is open, and must exit undisturbed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> str:
        """What it printed after `ready`; it must end well and have nothing to say on stderr."""
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (0, "")
        return out


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begins a Python program that can import a torch; `GPUFRAG_DIR` is the test's."""
    begun: list[subprocess.Popen[str]] = []
    monkeypatch.setenv("GPUFRAG_DIR", str(tmp_path / "shared"))

    def start(program: str, *before: str, python: str = sys.executable, **environment: str) -> Victim:
        path = {"PYTHONPATH": os.pathsep.join([*torch_path(tmp_path), str(PACKAGE.parent)])}
        command = [*before, python, "-c", f"import sys, os, time\n{program}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env={**os.environ, **path, **environment}, text=True, **pipes)  # type: ignore[call-overload]
        begun.append(process)
        return Victim(process)

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def attach(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`gpufrag attach PID --yes`: its exit code and the one line that it prints."""

    def run(pid: int, wait: float = 20.0) -> tuple[int, str]:
        code = main(["attach", str(pid), "--yes", "--wait", str(wait)])
        out, err = capsys.readouterr()
        assert (out + err).count("\n") == 1
        return code, out + err

    return run
