"""Which files the sidecar deletes from the agents' folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fake_agents import NOTHING, Clock, FakeAgent, process_sample, skipped, written
from gpufrag.config.sidecar import FolderSettings
from gpufrag.sidecar.processes import ProcessReader, Reading
from gpufrag.wire.folder import draft_name


def test_exited_process_is_kept_for_ten_minutes(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.start()
    written(agent, clock.now - 3600)  # it hung for an hour
    reader.read()
    agent.die()
    clock.now += 599
    assert len(reader.read().ranks) == 1
    clock.now += 2
    assert reader.read() == Reading((), NOTHING)
    assert os.listdir(agent.folder) == []


@pytest.mark.parametrize(("age", "kept"), [(599, True), (601, False)])
def test_restarted_sidecar_uses_the_files_time(agent, reader, clock: Clock, age: int, kept: bool) -> None:
    agent.publish()
    written(agent, clock.now - age)
    assert len(reader.read().ranks) == kept
    assert agent.file.exists() == kept


def test_living_process_is_not_deleted(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.start()
    written(agent, clock.now - 1e6)
    assert [rank.alive for rank in reader.read().ranks] == [True]
    assert agent.file.exists()


@pytest.mark.parametrize("ahead", [0, 7200], ids=["now", "in the future"])
def test_writing_process_without_listener_is_not_deleted(agent, reader, clock: Clock, ahead: int) -> None:
    agent.publish()
    for _ in range(3):
        clock.now += 500
        written(agent, clock.now + ahead)
        assert len(reader.read().ranks) == 1


def test_future_file_time_does_not_extend_retention(tmp_path: Path, clock: Clock) -> None:
    agent = FakeAgent(tmp_path)
    agent.publish()
    half, lone = tmp_path / draft_name(agent.name.sample), FakeAgent(tmp_path, process_sample(1))
    half.touch()
    lone.listen(), lone.die()
    for path in (agent.file, half, lone.socket):
        os.utime(path, (clock.now + 7200,) * 2)
    reader = ProcessReader(tmp_path, FolderSettings(), clock)
    for seconds in (0, 599):
        clock.now += seconds
        assert len(reader.read().ranks) == 1
    assert all(path.exists() for path in (agent.file, half, lone.socket))
    clock.now += 2
    assert (reader.read().ranks, os.listdir(tmp_path)) == ((), [])


def test_clock_set_back_does_not_extend_retention(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.start()
    reader.read()
    agent.die()
    for seconds, shown in ((-7200, 1), (599, 1), (2, 0)):
        clock.now += seconds
        assert len(reader.read().ranks) == shown


def test_file_of_a_newer_agent_is_deleted_too(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.leave(b'{"schema": 99}')
    written(agent, clock.now - 10)
    assert skipped(reader.read()) == {"newer": 1}
    clock.now += 600
    assert skipped(reader.read()) == {}
    assert not agent.file.exists()


@pytest.mark.parametrize("content", [b"{", b'{"my": "results"}', b""])
def test_file_not_written_by_an_agent_is_kept(agent: FakeAgent, reader: ProcessReader, content: bytes) -> None:
    agent.leave(content)
    lone = agent.file.with_name("results-2026-11.sock")
    lone.write_bytes(content)
    for path in (agent.file, lone):
        os.utime(path, (1, 1))
    assert reader.read().ranks == ()
    assert sorted(agent.folder.iterdir()) == sorted([agent.file, lone])


def test_files_with_other_names_are_kept(tmp_path: Path, reader: ProcessReader) -> None:
    names = ["notes.txt", "host-1.json", "host-07-1.json", "a-1-1.json.bak", ".hidden", ".other.tmp"]
    for name in names:
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (1, 1))
    assert skipped(reader.read()) == {"alien": 4}
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_old_draft_is_deleted(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    old, young = (agent.folder / draft_name(name) for name in (agent.name.sample, agent.name.socket))
    folder = agent.folder / draft_name(agent.name.socket)  # in which a killed agent was about to bind
    old.touch(), young.touch(), folder.mkdir()
    for path, age in ((old, 601), (folder, 601), (young, 599)):
        os.utime(path, (clock.now - age, clock.now - age))
    reader.read()
    assert os.listdir(agent.folder) == [young.name]


def test_old_socket_without_listener_is_deleted(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.listen()
    os.utime(agent.socket, (clock.now - 601, clock.now - 601))
    assert skipped(reader.read()) == {}
    assert agent.socket.exists()
    agent.die()
    reader.read()
    assert not agent.socket.exists()


def test_undeletable_file_does_not_stop_the_others(
    tmp_path: Path, reader: ProcessReader, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    agents = [FakeAgent(tmp_path, process_sample(rank)) for rank in range(3)]
    for agent in agents:
        agent.publish()
        written(agent, clock.now - 601)
    unlink, stuck = Path.unlink, {agents[0].file, agents[1].file}

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path in stuck:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert [reader.read() for _ in range(2)] == [Reading((), NOTHING)] * 2
    assert [agent.file.exists() for agent in agents] == [True, True, False]
    assert caplog.text.count("cannot delete files") == 1
    stuck.clear()
    reader.read()
    assert os.listdir(tmp_path) == []


def test_folders_with_agents_names_are_kept(agent: FakeAgent, reader: ProcessReader) -> None:
    for path in (agent.file, agent.folder / "host-1-1.sock"):
        path.mkdir()
        os.utime(path, (1, 1))
    assert skipped(reader.read()) == {"alien": 1}
    assert len(os.listdir(agent.folder)) == 2


@pytest.mark.parametrize("has_sample", [True, False])
def test_recordings_are_deleted_with_their_process(agent, reader, clock: Clock, has_sample: bool) -> None:
    if has_sample:
        agent.publish()
        written(agent, clock.now - 599)
    for name in agent.name.data:
        (agent.folder / name).touch()
        os.utime(agent.folder / name, (clock.now - 599,) * 2)
    assert (len(reader.read().ranks), skipped(reader.read())) == (has_sample, {})
    assert len(os.listdir(agent.folder)) == 3 + has_sample
    clock.now += 2
    reader.read()
    assert os.listdir(agent.folder) == []
