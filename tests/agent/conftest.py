"""The fakes as fixtures, and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fake_source import HandClock, ScriptedSource
from gpufrag import agent
from helpers import TESTS

EXPORTER = Path(agent.__file__).parents[2]
PATIENCE = 20.0
PIPE = subprocess.PIPE

Process = subprocess.Popen[str]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits until something is true; fails after a deadline that no working agent comes near."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.005)

    return wait


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared folder of this test, for processes too."""
    monkeypatch.setenv("GPUFRAG_DIR", str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.fixture
def no_agent() -> Iterator[None]:
    """Leaves this process without an agent, whatever the test began."""
    yield
    agent.stop()


@dataclass
class Scripts:
    """Runs Python programs with gpufrag importable and the test's folder in the environment."""

    home: Path

    def start(self, program: str, *command: str, python: str = sys.executable, **environment: str) -> Process:
        """`command` goes before the interpreter."""
        script = self.home / "program.py"
        script.write_text(program)
        quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Python >= 3.12, for a fork next to a thread
        path = {"PYTHONPATH": os.pathsep.join([str(EXPORTER), str(TESTS), os.environ.get("PYTHONPATH", "")])}
        surroundings = {**os.environ, **quiet, **path, **environment}
        words = [*command, python, str(script)]
        return subprocess.Popen(words, env=surroundings, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def run(self, program: str, *command: str, python: str = sys.executable, **environment: str) -> str:
        """What it prints; it must end well and say nothing on stderr."""
        with self.start(program, *command, python=python, **environment) as process:
            out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        return out


@pytest.fixture
def scripts(folder: Path, tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)
