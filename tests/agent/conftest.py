"""The fakes as fixtures, and agents over them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.programs import Scripts
from fake_source import HandClock, ScriptedSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.wire.error_counter import ErrorCounter

PATIENCE = 20.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


@pytest.fixture
def errors() -> ErrorCounter:
    return ErrorCounter()


@pytest.fixture
def begin(source: Any, errors: ErrorCounter, tmp_path: Path, eventually: Any) -> Iterator[Callable[..., Agent]]:
    """Starts an agent that publishes into the test's folder, and waits for its first sample.

    It publishes another one only on request, unless the settings say otherwise.
    """
    begun = []

    def start(framework: Any = source, wait: bool = True, **settings: Any) -> Agent:
        defaults = {"interval": 1000.0, "publish_every": 500.0, "folder": tmp_path}
        begun.append(agent := Agent(framework, AgentSettings(**{**defaults, **settings}), errors))
        agent.start()
        if wait:
            eventually(lambda: agent.latest)
        return agent

    yield start
    for agent in begun:
        agent.stop()


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
def scripts(folder: Path, tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)
