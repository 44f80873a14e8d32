"""An agent's own thread, with a trainer in another one, finds peaks and stays reachable meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_source import FollowedSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.peak import Level
from gpufrag.agent.settings import AgentSettings
from gpufrag.wire.error_counter import ErrorCounter

FAST = {"interval": 0.05, "budget": 1.0, "publish_every": 0.02}
Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def source() -> FollowedSource:
    return FollowedSource()


@pytest.fixture
def begin(source: FollowedSource, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    begun = []

    def start(**settings: Any) -> Agent:
        agent = Agent(source, AgentSettings(**{**FAST, "folder": tmp_path, **settings}), ErrorCounter())
        begun.append(agent)
        agent.start()
        return agent

    yield start
    for agent in begun:
        agent.stop()


@pytest.fixture
def training(source: FollowedSource) -> Iterator[Callable[[float], None]]:
    """Begins a thread that makes a step every so many seconds."""
    ending = threading.Event()
    threads: list[threading.Thread] = []

    def train(seconds: float) -> None:
        def loop() -> None:
            while not ending.wait(seconds):
                source.step()

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield train
    ending.set()
    for thread in threads:
        thread.join()


def moments(agent: Agent) -> set[str]:
    latest = agent.latest
    return {shot.at for device in latest.devices for shot in device.snapshots} if latest else set()


def test_both_moments_are_published(begin, training, eventually: Eventually) -> None:
    agent = begin()
    training(0.02)
    eventually(lambda: {"boundary", "peak"} <= moments(agent))
    assert agent.latest.health.errors == {}


def test_a_long_step_is_followed_between_publications(begin, training, eventually: Eventually) -> None:
    agent = begin()
    training(0.3)
    eventually(lambda: "peak" in moments(agent))


def test_while_a_step_is_followed_the_agent_answers_and_ends(begin, source, eventually: Eventually) -> None:
    agent = begin(interval=0.3, publish_every=100.0)
    source.curve = tuple(range(100, 1_000_000, 100))  # a step that rises and does not end
    for _ in range(3):
        source.step()
        time.sleep(0.2)
    eventually(lambda: source.step() or agent._sampler.following)
    assert agent.sample_now()["time"] == agent.latest.time
    began = time.monotonic()
    agent.stop()
    assert time.monotonic() - began < 1.5
    assert not [thread for thread in threading.enumerate() if thread.name == "gpufrag-sampler"]


def test_a_source_whose_level_fails_is_counted_and_boundaries_go_on(begin, source, training, eventually) -> None:
    source.level = lambda device: 1 // 0
    agent = begin()
    training(0.01)
    eventually(lambda: agent.latest and agent.latest.health.errors.get("step", 0) > 1)
    before = source.captures
    eventually(lambda: source.captures > before + 3)
    assert moments(agent) <= {"boundary", "timer"}


def test_a_level_that_fails_in_the_midst_of_a_step_ends_its_search(begin, source, training, eventually) -> None:
    told = source.level

    def failing(device: int) -> Level | None:
        if threading.current_thread().name == "gpufrag-sampler":
            raise RuntimeError("no")
        return told(device)

    source.level = failing
    agent = begin()
    training(0.05)
    eventually(lambda: agent.latest and agent.latest.health.errors.get("sampler", 0) > 2)
    steps = agent.latest.steps
    assert agent.latest.health.errors["sampler"] <= steps
