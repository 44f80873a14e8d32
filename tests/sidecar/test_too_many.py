"""More processes than are read at once: each scrape shows the same ones, and none is displaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_agents import FakeAgent, process_sample
from gpufrag.config.sidecar import FolderSettings
from gpufrag.sidecar.processes import ProcessReader


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[FakeAgent]]:
    agents = [FakeAgent(tmp_path, process_sample(rank)).start() for rank in range(6)]
    yield agents
    for agent in agents:
        agent.die()


@pytest.fixture
def reader(tmp_path: Path) -> ProcessReader:
    return ProcessReader(tmp_path, FolderSettings(max_processes=3))


def shown(reader: ProcessReader) -> list[int | None]:
    return [rank.sample.identity.rank for rank in reader.read().ranks]


def rewritten(agent: FakeAgent, ahead: float) -> None:
    """Written so many seconds from now: later than whatever else there is."""
    agent.publish()
    os.utime(agent.file, (time.time() + ahead,) * 2)


def test_last_writer_does_not_displace_living_processes(agents: list[FakeAgent], reader: ProcessReader) -> None:
    first = shown(reader)
    others = [agent for agent in agents if agent.sample.identity.rank not in first]
    for seconds, agent in enumerate(others, start=1):
        rewritten(agent, ahead=10.0 * seconds)
        assert shown(reader) == first


def test_place_of_an_exited_process_goes_to_a_living_one(agents: list[FakeAgent], reader: ProcessReader) -> None:
    first = shown(reader)
    for agent in agents:
        if agent.sample.identity.rank in first:
            agent.die()
        else:
            rewritten(agent, ahead=10.0)
    reader.read()  # they are dead now
    assert set(shown(reader)).isdisjoint(first)


def test_selection_does_not_depend_on_write_order(
    agents: list[FakeAgent], reader: ProcessReader, caplog: pytest.LogCaptureFixture
) -> None:
    for ahead, agent in enumerate([*agents, *reversed(agents)]):
        rewritten(agent, ahead=float(ahead))
        reader.read()
    assert [record.getMessage() for record in caplog.records] == ["files skipped"]


def test_other_files_displace_no_process(tmp_path: Path, agents: list[FakeAgent], reader: ProcessReader) -> None:
    first = shown(reader)
    for pid in range(5000, 5010):
        name = f"host-{pid}-900000"
        (tmp_path / f"{name}.json").write_text("rubbish")
        (tmp_path / f"{name}.sock").write_text("no socket")
        os.utime(tmp_path / f"{name}.json", (time.time() + 60,) * 2)
    assert shown(reader) == first
