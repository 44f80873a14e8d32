"""A process with two frameworks: one agent, one sample, the devices of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

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
from gpufrag.wire.sample import DeviceSample, ProcessSample, decode, encode

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def with_jax(monkeypatch: pytest.MonkeyPatch) -> FakeJax:
    fake = jax(monkeypatch)
    fake.initialise("cuda", JaxDevice())
    return fake


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return AgentSettings(interval=1000.0, publish_every=0.02, folder=tmp_path)


@pytest.fixture
def agent_of(settings: AgentSettings) -> Iterator[Callable[[ModuleType], Agent]]:
    begun: list[Agent] = []

    def begin(framework: ModuleType) -> Agent:
        begun.append(Agent(connect(framework, ErrorCounter()), settings))
        begun[-1].start()
        return begun[-1]

    yield begin
    for agent in begun:
        agent.stop()


def _devices(agent: Agent) -> list[tuple[str | None, int, str]]:
    devices: tuple[DeviceSample, ...] = agent.latest.devices if agent.latest else ()
    return [(device.framework, device.device, device.backend) for device in devices]


BOTH = [("jax", 0, "bfc"), (None, 0, "native")]


@pytest.mark.parametrize("first", ["torch", "jax"])
def test_both_frameworks_are_in_one_sample(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually, first: str
) -> None:
    torch = torch_of(Machine())
    one, other = (torch, with_jax.module) if first == "torch" else (with_jax.module, torch)
    agent = agent_of(one)
    agent.add(connect(other, agent.errors))
    agent.add(connect(other, agent.errors))
    eventually(lambda: _devices(agent) == BOTH)
    assert agent.latest is not None
    assert agent.latest.identity.framework == "torch"
    assert {device.framework_version for device in agent.latest.devices} == {None, "0.10.2"}


def test_torch_as_second_framework_becomes_primary(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually
) -> None:
    machine = Machine()
    agent = agent_of(with_jax.module)
    agent.add(connect(torch_of(machine), agent.errors))
    eventually(lambda: _devices(agent) == BOTH)
    machine.step("optimizer")  # records
    machine.step("optimizer")
    eventually(lambda: agent.latest and agent.latest.steps == 2 and agent.latest.devices[-1].snapshots)
    assert len(machine.observers) == 1


def test_ooms_belong_to_the_primary_framework(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually
) -> None:
    agent = agent_of(torch_of(Machine()))
    agent.add(connect(with_jax.module, agent.errors))
    eventually(lambda: _devices(agent) == BOTH)
    assert agent.latest is not None
    assert [device.ooms is None for device in agent.latest.devices] == [True, False]


def test_failing_second_framework_loses_only_its_figures(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually
) -> None:
    with_jax.initialise("cuda", JaxDevice(fault=RuntimeError("gone")))
    agent = agent_of(torch_of(Machine()))
    agent.add(connect(with_jax.module, agent.errors))
    eventually(lambda: agent.errors.counts.get("jax.Device.memory_stats"))
    eventually(lambda: _devices(agent) == BOTH[1:])


def test_unexpected_error_of_second_framework_is_confined(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually
) -> None:
    with_jax.initialise("cuda", JaxDevice(fault=ZeroDivisionError("gone")))
    agent = agent_of(torch_of(Machine()))
    agent.add(connect(with_jax.module, agent.errors))
    eventually(lambda: agent.errors.counts.get("sampler"))
    eventually(lambda: _devices(agent) == BOTH[1:])


def test_cost_of_second_framework_is_counted(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually
) -> None:
    class Slow(JaxDevice):
        def memory_stats(self) -> dict[str, int] | None:
            until = time.perf_counter() + 0.002
            while time.perf_counter() < until:
                pass
            return super().memory_stats()

    with_jax.initialise("cuda", Slow())
    agent = agent_of(torch_of(Machine()))
    agent.add(connect(with_jax.module, agent.errors))
    eventually(lambda: _devices(agent) == BOTH)
    assert agent.latest is not None
    assert agent.latest.health.stall_seconds["wait"] >= 0.002


def test_second_launch_joins_the_running_agent(
    with_jax: FakeJax, settings: AgentSettings, eventually: Eventually
) -> None:
    lifecycle.begin(connect(torch_of(Machine()), ErrorCounter()), settings)
    try:
        lifecycle.launch(with_jax.module)
        eventually(lambda: (sample := lifecycle.latest()) and len(sample.devices) == 2)
    finally:
        lifecycle.stop()


def test_custom_source_stays_primary(source: ScriptedSource, settings: AgentSettings) -> None:
    agent = Agent(source, settings)
    agent.add(connect(torch_of(Machine()), agent.errors))
    assert agent._source is source


def _sample(agent: Agent) -> ProcessSample:
    assert agent.latest is not None
    return decode(encode(agent.latest))


def test_series_of_two_frameworks_differ(
    with_jax: FakeJax, agent_of: Callable[[ModuleType], Agent], eventually: Eventually
) -> None:
    agent = agent_of(torch_of(Machine()))
    agent.add(connect(with_jax.module, agent.errors))
    eventually(lambda: _devices(agent) == BOTH)
    sample = _sample(agent)
    fleet = Fleet(sample.time, (RankView(replace(sample, identity=replace(sample.identity, rank=0))),))
    series = [(s.name, *sorted(s.labels.items())) for family in families(fleet) for s in family.samples]
    assert len(series) == len(set(series))
    labels = [dict(rest) for name, *rest in series if name == "gpufrag_allocator_reserved_bytes"]
    assert sorted(map(sorted, labels)) == [["device", "framework", "rank"], *[["device", "pool", "rank"]] * 2]
