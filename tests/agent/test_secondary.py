"""A process with two frameworks: one agent, one sample, the devices of both."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from fake_frameworks import FakeJax, JaxDevice, jax
from fake_source import ScriptedSource
from fake_torch import Machine, torch_of
from gpufrag.agent import lifecycle
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import connect
from gpufrag.metrics import families
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import decode, encode

BOTH = [("jax", 0, "bfc"), (None, 0, "native")]


@pytest.fixture
def with_jax(monkeypatch: pytest.MonkeyPatch) -> FakeJax:
    fake = jax(monkeypatch)
    fake.initialise("cuda", JaxDevice())
    return fake


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def agent_of(begin, errors: ErrorCounter, machine: Machine, with_jax: FakeJax) -> Callable[..., Agent]:
    """An agent of the frameworks with these names, the second one added twice."""
    modules = {"torch": torch_of(machine), "jax": with_jax.module}

    def start(first: str = "torch", second: str = "jax") -> Agent:
        agent = begin(connect(modules[first], errors), publish_every=0.02)
        for _ in range(2):
            agent.add(connect(modules[second], errors))
        return agent

    return start


def devices(agent: Agent) -> list[tuple[str | None, int, str]]:
    return [(d.framework, d.device, d.backend) for d in agent.latest.devices] if agent.latest else []


@pytest.mark.parametrize(("first", "second"), [("torch", "jax"), ("jax", "torch")])
def test_both_frameworks_are_in_one_sample(agent_of, eventually, first: str, second: str) -> None:
    agent = agent_of(first, second)
    eventually(lambda: devices(agent) == BOTH)
    assert agent.latest.identity.framework == "torch"
    assert {device.framework_version for device in agent.latest.devices} == {None, "0.10.2"}
    assert [device.ooms is None for device in agent.latest.devices] == [True, False]


def test_torch_as_second_framework_becomes_primary(agent_of, machine: Machine, eventually) -> None:
    agent = agent_of("jax", "torch")
    eventually(lambda: devices(agent) == BOTH)
    machine.step("optimizer")  # records
    machine.step("optimizer")
    eventually(lambda: agent.latest.steps == 2 and agent.latest.devices[-1].snapshots)
    assert len(machine.observers) == 1


@pytest.mark.parametrize(
    ("fault", "counted"), [(RuntimeError("gone"), "jax.Device.memory_stats"), (ZeroDivisionError("gone"), "sampler")]
)
def test_failing_second_framework_loses_only_its_figures(
    agent_of, with_jax: FakeJax, errors: ErrorCounter, eventually, fault: Exception, counted: str
) -> None:
    with_jax.initialise("cuda", JaxDevice(fault=fault))
    agent = agent_of()
    eventually(lambda: errors.counts.get(counted))
    eventually(lambda: devices(agent) == BOTH[1:])


def test_cost_of_second_framework_is_counted(agent_of, with_jax: FakeJax, eventually) -> None:
    class Slow(JaxDevice):
        def memory_stats(self) -> dict[str, int] | None:
            until = time.perf_counter() + 0.002
            while time.perf_counter() < until:
                pass
            return super().memory_stats()

    with_jax.initialise("cuda", Slow())
    agent = agent_of()
    eventually(lambda: devices(agent) == BOTH)
    assert agent.latest.health.stall_seconds["wait"] >= 0.002


def test_second_launch_joins_the_running_agent(with_jax: FakeJax, machine: Machine, tmp_path, eventually) -> None:
    settings = AgentSettings(interval=1000.0, publish_every=0.02, folder=tmp_path)
    lifecycle.begin(connect(torch_of(machine), ErrorCounter()), settings)
    try:
        lifecycle.launch(with_jax.module)
        eventually(lambda: (sample := lifecycle.latest()) and len(sample.devices) == 2)
    finally:
        lifecycle.stop()


def test_custom_source_stays_primary(source: ScriptedSource, machine: Machine) -> None:
    agent = Agent(source, AgentSettings())
    agent.add(connect(torch_of(machine), agent.errors))
    assert agent._source is source


def test_series_of_two_frameworks_differ(agent_of, eventually) -> None:
    agent = agent_of()
    eventually(lambda: devices(agent) == BOTH)
    sample = decode(encode(agent.latest))
    fleet = Fleet(sample.time, (RankView(replace(sample, identity=replace(sample.identity, rank=0))),))
    series = [(s.name, *sorted(s.labels.items())) for family in families(fleet) for s in family.samples]
    assert len(series) == len(set(series))
    labels = [dict(rest) for name, *rest in series if name == "gpufrag_allocator_reserved_bytes"]
    assert sorted(map(sorted, labels)) == [["device", "framework", "rank"], *[["device", "pool", "rank"]] * 2]
