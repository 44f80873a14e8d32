"""Reading the agents' folder: which processes are alive, and their samples."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fake_agents import NOTHING, Clock, FakeAgent, process_sample, skipped
from gpufrag.config.sidecar import FolderSettings
from gpufrag.errors import Unavailable
from gpufrag.sidecar import sample_files
from gpufrag.sidecar.processes import ProcessReader, Reading
from gpufrag.wire.sample import encode


def test_process_is_alive_while_it_listens(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.publish()
    assert [rank.alive for rank in reader.read().ranks] == [False]
    agent.listen()
    assert [(rank.sample, rank.alive) for rank in reader.read().ranks] == [(agent.sample, True)]
    agent.die()
    assert [(rank.sample, rank.alive) for rank in reader.read().ranks] == [(agent.sample, False)]


def test_every_reason_is_counted(reader: ProcessReader) -> None:
    assert reader.read() == Reading((), NOTHING)


def test_process_with_a_full_backlog_is_alive(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.listen(backlog=0)
    agent.publish()
    for _ in range(50):  # each leaves a connection in the queue, until it is full
        assert [rank.alive for rank in reader.read().ranks] == [True]


def test_each_reading_has_the_latest_sample(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.start()
    for step in range(5):
        agent.publish(steps=step)
        assert [rank.sample.steps for rank in reader.read().ranks] == [step]


def test_unchanged_file_is_not_opened_again(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_deleted_file_is_forgotten(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.publish()
    reader.read()
    agent.file.unlink()
    assert reader.read() == Reading((), NOTHING)
    assert (reader._known, reader._names) == ({}, {})


def test_missing_folder_is_reported_until_it_exists(start_agent, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    reader = ProcessReader(folder, FolderSettings())
    with pytest.raises(Unavailable, match="later: no such folder yet; the first agent creates it"):
        reader.read()
    folder.mkdir()
    start_agent(folder=folder)
    assert len(reader.read().ranks) == 1


def test_path_that_is_not_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file: Not a directory; name another folder with --folder$"):
        ProcessReader(tmp_path / "file", FolderSettings()).read()


def test_unreadable_folder_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # root may read every folder
    with pytest.raises(Unavailable, match="Permission denied; let the sidecar and the job share a user or a group"):
        ProcessReader(tmp_path, FolderSettings()).read()


def test_long_path_works(start_agent, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    start_agent(folder=folder)
    assert [rank.alive for rank in ProcessReader(folder, FolderSettings()).read().ranks] == [True]
