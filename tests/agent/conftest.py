"""Clocks that are set by hand, a source that is told what to answer, and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpufrag import agent
from gpufrag.agent.sampler import Clocks
from gpufrag.agent.sources import Capture, DeviceFacts, DeviceReading
from gpufrag.model.heap import Heap
from gpufrag.sample import DriverReading, PoolTotals, Totals
from helpers import golden_case_named

EXPORTER = Path(agent.__file__).parents[2]
PATIENCE = 20.0
PIPE = subprocess.PIPE

Process = subprocess.Popen[str]


@dataclass
class HandClock:
    """All of an agent's clocks; they move only when told to."""

    now: float = 1_000_000.0
    cpu: float = 0.0

    def tick(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clocks(self) -> Clocks:
        return Clocks(wall=lambda: self.now, monotonic=lambda: self.now, cpu=lambda: self.cpu)


@dataclass
class ScriptedSource:
    """A framework with one device whose heap is a recorded one."""

    heap: Heap = field(default_factory=lambda: golden_case_named("train-default").heap)
    free: int = 50_000_000_000
    size: int = 150_000_000_000
    held: float = 0.0
    waited: float = 0.0
    read_held: float = 0.0
    history: bool = False
    graph: bool = False
    present: bool = True
    steps: bool = True
    captures: int = 0
    during_capture: Callable[[], None] = lambda: None
    on_step: Callable[[object], None] | None = None
    framework: str = "scripted"
    framework_version: str | None = "1.0"

    def facts(self, device: int) -> DeviceFacts:
        return DeviceFacts("native", "GPU-0")

    def read(self) -> Sequence[DeviceReading]:
        return [self._reading()] if self.present else []

    def capture(self) -> Capture | None:
        self.captures += 1
        self.during_capture()
        heap = self.heap
        return Capture(lambda: heap, [self._reading()], {0: self.size // 2}, "conf", self.held, self.waited)

    def recording(self) -> bool:
        return self.history

    def graph_underway(self) -> bool:
        return self.graph

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        self.on_step = on_step if self.steps else None
        return self.steps

    def close(self) -> None:
        self.on_step = None

    def step(self, optimizer: object = "optimizer") -> None:
        assert self.on_step is not None
        self.on_step(optimizer)

    def _reading(self) -> DeviceReading:
        reserved = sum(segment.size for segment in self.heap.segments)
        totals = Totals(1.0, PoolTotals(1, 1, 1, reserved, 0), PoolTotals(0, 0, 0, 0, 0), 1, 1)
        return DeviceReading(0, totals, DriverReading(1.0, self.free, self.size), self.read_held)


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
        surroundings = {**os.environ, "PYTHONPATH": str(EXPORTER), **environment}
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
