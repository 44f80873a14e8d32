"""Processes that read a described machine through the real pynvml and a built libnvidia-ml.so.1."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_agents import Clock, FakeAgent, process_sample
from gpufrag.config.sidecar import FolderSettings
from gpufrag.sidecar.processes import ProcessReader
from gpufrag.wire.sample import ProcessSample

StartAgent = Callable[..., FakeAgent]
FAKE = Path(__file__).parent / "fake_nvml"
GIB = 1 << 30


class NvmlProcess:
    """A process that runs fake_nvml/remote.py."""

    def __init__(self, library: Path, folder: Path, machine: str) -> None:
        self._machine, self._calls = folder / "machine", folder / "calls"
        self.describe(machine)
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_MACHINE": str(self._machine),
            "FAKE_NVML_CALLS": str(self._calls),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, str(FAKE / "remote.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def describe(self, machine: str | bytes) -> None:
        """fake_nvml/nvml.c documents the format. The file is replaced as a whole."""
        new = self._machine.with_suffix(".new")
        new.write_bytes(machine.encode() if isinstance(machine, str) else machine)
        new.replace(self._machine)

    def calls(self, name: str) -> int:
        """Return how often the library's function was called."""
        return self._calls.read_text().split().count(name)

    def read(self) -> Any:
        return self._ask("read")

    def collect(self, deadline: float = 20.0) -> Any:
        """Use one collector; the deadline of the first call applies."""
        return self._ask("collect", deadline)

    def pass_time(self, seconds: float) -> None:
        self._ask("pass_time", seconds)

    def threads(self) -> Any:
        return self._ask("threads")

    def _ask(self, name: str, *arguments: object) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        pickle.dump((name, arguments), self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)  # noqa: S301 (from the process that we started)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """The process ends with its input, even while NVML hangs in another thread."""
        try:
            self.process.communicate(timeout=20)
        finally:
            self.process.kill()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Builds the library of one generation of drivers and returns its folder."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang): NVML's code path was NOT tested; install one")
    built: dict[int, Path] = {}

    def build(generation: int) -> Path:
        if generation not in built:
            built[generation] = tmp_path_factory.mktemp(f"nvml{generation}")
            output = built[generation] / "libnvidia-ml.so.1"
            flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-DGENERATION={generation}"]
            subprocess.run([compiler, *flags, "-o", output, FAKE / "nvml.c"], check=True)
        return built[generation]

    return build


@pytest.fixture
def nvml_machine(nvml_library: Callable[[int], Path], tmp_path: Path) -> Iterator[Callable[..., NvmlProcess]]:
    """Starts the process for a described machine; `generation` is that of the driver."""
    started: list[NvmlProcess] = []

    def start(machine: str, generation: int = 3) -> NvmlProcess:
        started.append(NvmlProcess(nvml_library(generation), tmp_path, machine))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(tmp_path: Path, clock: Clock) -> ProcessReader:
    return ProcessReader(tmp_path, FolderSettings(max_reports=5), clock)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path)
    yield agent
    agent.die()


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Starts any number of agents; all of them end with the test."""
    with contextlib.ExitStack() as stack:

        def start(sample: ProcessSample | None = None, folder: Path = tmp_path) -> FakeAgent:
            agent = FakeAgent(folder, sample or process_sample())
            stack.callback(agent.die)
            return agent.start()

        yield start


@pytest.fixture
def agents(start_agent: StartAgent) -> list[FakeAgent]:
    """Ranks 0 and 1."""
    return [start_agent(process_sample(rank)) for rank in range(2)]
