"""The agents' folder as the sidecar reads it: who is alive, and what it says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fake_agents import Clock, FakeAgent, process_sample, skipped
from gpufrag.config.sidecar import FolderSettings
from gpufrag.errors import Unavailable
from gpufrag.sidecar import sample_files
from gpufrag.sidecar.processes import ProcessReader, Reading
from gpufrag.wire.sample import encode

NOTHING = {"alien": 0, "denied": 0, "huge": 0, "newer": 0, "too_many": 0, "too_much": 0, "torn": 0}


def test_who_listens_is_alive(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.start()
    (rank,) = reader.read().ranks
    assert (rank.sample, rank.alive) == (agent.sample, True)


def test_every_reason_is_told_even_if_nothing_is_skipped(reader: ProcessReader) -> None:
    assert reader.read() == Reading((), NOTHING)


def test_who_has_stopped_to_listen_is_dead_at_once(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.start()
    reader.read()
    agent.die()
    (rank,) = reader.read().ranks
    assert (rank.sample, rank.alive) == (agent.sample, False)


def test_a_file_without_a_socket_is_a_dead_process(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.publish()
    assert [rank.alive for rank in reader.read().ranks] == [False]


def test_a_process_that_accepts_nobody_is_alive(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.listen(backlog=0)
    agent.publish()
    for _ in range(50):  # each leaves a connection in the queue, until it is full
        assert [rank.alive for rank in reader.read().ranks] == [True]


def test_each_reading_has_the_latest_sample(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.start()
    for step in range(5):
        agent.publish(steps=step)
        assert [rank.sample.steps for rank in reader.read().ranks] == [step]


def test_an_unchanged_file_is_not_opened_again(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = sample_files.read
    monkeypatch.setattr(sample_files, "read", lambda path, most: opened.append(path.name) or real(path, most))
    sample = process_sample()
    content = encode(sample)
    for pid in range(10_000):
        (tmp_path / f"host-{pid}-900000.json").write_bytes(content if pid == 100 else b"{")
    reader = ProcessReader(tmp_path, FolderSettings(max_processes=20_000), clock)
    first = reader.read()
    assert (len(first.ranks), skipped(first), len(opened)) == (1, {"torn": 9999}, 10_000)
    assert reader.read() == first
    FakeAgent(tmp_path, replace(sample, steps=121)).publish()
    assert [rank.sample.steps for rank in reader.read().ranks] == [121]
    assert len(opened) == 10_001


def test_what_has_gone_is_forgotten(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.publish()
    reader.read()
    agent.file.unlink()
    assert reader.read() == Reading((), NOTHING)
    assert (reader._known, reader._names) == ({}, {})


def test_a_missing_folder_is_told_and_its_coming_seen(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    reader = ProcessReader(folder, FolderSettings())
    with pytest.raises(Unavailable, match="later: no such folder yet; it comes with the first agent"):
        reader.read()
    folder.mkdir()
    agent = FakeAgent(folder).start()
    assert len(reader.read().ranks) == 1
    agent.die()


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file: Not a directory; name another folder with --folder$"):
        ProcessReader(tmp_path / "file", FolderSettings()).read()


def test_a_folder_that_may_not_be_read_is_told_with_who_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # root may read every folder
    with pytest.raises(Unavailable, match="Permission denied; let the sidecar and the job share a user or a group"):
        ProcessReader(tmp_path, FolderSettings()).read()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    agent = FakeAgent(folder).start()
    assert [rank.alive for rank in ProcessReader(folder, FolderSettings()).read().ranks] == [True]
    agent.die()
