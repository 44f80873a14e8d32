"""The agents' folder as the sidecar reads it: who is alive, what is skipped, what is swept."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_agents import FakeAgent, process_sample
from gpufrag.config import FolderSettings
from gpufrag.errors import Unavailable
from gpufrag.sample import MAX_BYTES, encode
from gpufrag.sidecar import sample_files
from gpufrag.sidecar.processes import ProcessReader, Reading

NOTHING = {"alien": 0, "denied": 0, "huge": 0, "newer": 0, "too_many": 0, "torn": 0}


class Clock:
    """The system clock, and how far the test has moved it."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(tmp_path: Path, clock: Clock) -> ProcessReader:
    return ProcessReader(tmp_path, FolderSettings(), clock)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path)
    yield agent
    agent.die()


def written(agent: FakeAgent, time: float) -> None:
    """As if the agent had last written at `time`."""
    os.utime(agent.file, (time, time))


def skipped(reading: Reading) -> dict[str, int]:
    return {reason: count for reason, count in reading.skipped.items() if count}


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


def test_last_words_stay_for_ten_minutes_after_the_end(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.start()
    written(agent, clock.now - 3600)  # it hung for an hour
    reader.read()
    agent.die()
    clock.now += 599
    assert len(reader.read().ranks) == 1
    clock.now += 2
    assert reader.read() == Reading((), NOTHING)
    assert os.listdir(agent.folder) == []


def test_after_a_restart_the_files_time_counts(agent: FakeAgent, tmp_path: Path, clock: Clock) -> None:
    agent.publish()
    written(agent, clock.now - 599)
    assert len(ProcessReader(tmp_path, FolderSettings(), clock).read().ranks) == 1
    written(agent, clock.now - 601)
    assert ProcessReader(tmp_path, FolderSettings(), clock).read().ranks == ()
    assert not agent.file.exists()


def test_the_living_are_never_swept(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.start()
    written(agent, clock.now - 1e6)
    assert [rank.alive for rank in reader.read().ranks] == [True]
    assert agent.file.exists()


def test_one_that_cannot_listen_but_writes_is_not_swept(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.publish()
    for _ in range(3):
        clock.now += 500
        written(agent, clock.now)
        assert len(reader.read().ranks) == 1


def test_what_a_newer_agent_has_left_is_swept_too(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.leave(b'{"schema": 99}')
    written(agent, clock.now - 10)
    assert skipped(reader.read()) == {"newer": 1}
    clock.now += 600
    assert skipped(reader.read()) == {}
    assert not agent.file.exists()


@pytest.mark.parametrize("content", [b"{", b'{"my": "results"}', b""])
def test_what_no_agent_has_written_is_never_removed(
    agent: FakeAgent, reader: ProcessReader, clock: Clock, content: bytes
) -> None:
    agent.leave(content)
    lone = agent.file.with_name("results-2026-11.sock")
    lone.write_bytes(content)
    for path in (agent.file, lone):
        os.utime(path, (clock.now - 5000, clock.now - 5000))
    assert reader.read().ranks == ()
    assert agent.file.exists()
    assert lone.exists()


def test_strangers_files_are_left_alone(tmp_path: Path, reader: ProcessReader, clock: Clock) -> None:
    names = ["notes.txt", "host-1.json", "host-07-1.json", "a-1-1.json.bak", ".hidden", ".other.tmp"]
    for name in names:
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (1, 1))
    assert skipped(reader.read()) == {"alien": 4}
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_was_half_written_is_swept_when_it_is_old(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    old, young = (agent.folder / f".{name}.tmp" for name in (agent.name.sample, agent.name.stem))
    for path, age in ((old, 601), (young, 599)):
        path.write_text("{")
        os.utime(path, (clock.now - age, clock.now - age))
    reader.read()
    assert os.listdir(agent.folder) == [young.name]


def test_a_lone_socket_is_swept_when_it_is_old_and_deaf(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    agent.listen()
    os.utime(agent.socket, (clock.now - 601, clock.now - 601))
    assert skipped(reader.read()) == {}
    assert agent.socket.exists()
    agent.die()
    reader.read()
    assert not agent.socket.exists()


def test_a_folder_that_only_agents_may_change_is_read_all_the_same(
    agent: FakeAgent, reader: ProcessReader, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    agent.publish()
    written(agent, clock.now - 601)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert [reader.read() for _ in range(2)] == [Reading((), NOTHING)] * 2
    assert caplog.text.count("files of dead processes stay") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "torn"),
        (b"{", "torn"),
        (b"null", "torn"),
        (b"\xff\xfe", "torn"),
        (b'{"schema": 1}', "torn"),
        (b'{"schema": 99, "anything": 1}', "newer"),
        (b"[" * 100_000, "torn"),
        (b" " * ((1 << 20) + 1), "huge"),
    ],
)
def test_a_bad_file_is_counted_and_the_others_are_read(
    tmp_path: Path, reader: ProcessReader, content: bytes, reason: str
) -> None:
    good, bad = FakeAgent(tmp_path), FakeAgent(tmp_path, process_sample(1))
    good.start()
    bad.listen()
    bad.leave(content)
    reading = reader.read()
    assert [rank.sample for rank in reading.ranks] == [good.sample]
    assert skipped(reading) == {reason: 1}
    good.die(), bad.die()


def test_a_file_above_the_largest_sample_is_too_large_whatever_the_config_allows(tmp_path: Path) -> None:
    large = FakeAgent(tmp_path)
    large.listen()
    large.leave(b" " * (MAX_BYTES + 1))
    reader = ProcessReader(tmp_path, FolderSettings(max_file_size=1 << 40))
    assert skipped(reader.read()) == {"huge": 1}
    large.die()


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_no_content_whatever_fails_a_reading(tmp_path: Path, data: st.DataObject) -> None:
    whole = encode(process_sample())
    cut, flipped = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, len(whole) - 1))
    kinds = st.sampled_from([whole[:cut], whole[:flipped] + bytes([whole[flipped] ^ 32]) + whole[flipped + 1 :]])
    agent = FakeAgent(tmp_path)
    agent.leave(data.draw(kinds | st.binary(max_size=200)))
    reading = ProcessReader(tmp_path, FolderSettings(), Clock()).read()
    assert len(reading.ranks) + sum(reading.skipped.values()) == 1


def test_links_are_not_followed(agent: FakeAgent, reader: ProcessReader, tmp_path: Path) -> None:
    outside = tmp_path / ".outside"
    outside.write_bytes(encode(agent.sample))
    agent.file.symlink_to(outside)
    assert (reader.read().ranks, skipped(reader.read())) == ((), {"alien": 1})


def test_a_linked_socket_is_not_asked(agent: FakeAgent, reader: ProcessReader, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / ".other"))
        other.listen()
        other.setblocking(False)
        agent.publish()
        agent.socket.symlink_to(tmp_path / ".other")
        assert [rank.alive for rank in reader.read().ranks] == [False]
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_pipe_is_not_waited_for(agent: FakeAgent, reader: ProcessReader) -> None:
    os.mkfifo(agent.file)
    assert skipped(reader.read()) == {"alien": 1}


def test_a_link_or_pipe_that_comes_between_listing_and_opening_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    assert sample_files.read(tmp_path / "link", 1000) is sample_files.Skip.ALIEN
    assert sample_files.read(tmp_path / "pipe", 1000) is sample_files.Skip.ALIEN
    assert sample_files.read(tmp_path / "gone", 1000) is None


def test_folders_with_agents_names_are_left_alone(agent: FakeAgent, reader: ProcessReader, clock: Clock) -> None:
    for path in (agent.file, agent.folder / "host-1-1.sock"):
        path.mkdir()
        os.utime(path, (1, 1))
    assert skipped(reader.read()) == {"alien": 1}
    assert len(os.listdir(agent.folder)) == 2


def test_a_copy_under_another_name_is_no_process(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.start()
    shutil.copy(agent.file, agent.folder / "host-7-7.json")
    reading = reader.read()
    assert (len(reading.ranks), skipped(reading)) == (1, {"alien": 1})


def test_what_may_not_be_read_is_counted(
    agent: FakeAgent, reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    agent.start()
    monkeypatch.setattr(os, "open", refuse)  # root may read everything, so the system's own refusal needs a user
    assert skipped(reader.read()) == {"denied": 1}


def test_anothers_files_are_counted_as_denied(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("others")
    unreadable, deaf = FakeAgent(folder).start(), FakeAgent(folder, process_sample(1)).start()
    unreadable.file.chmod(0)
    unreadable.socket.chmod(0o666)
    deaf.socket.chmod(0)
    with as_nobody(folder, folder.parent, folder.parent.parent):
        assert ProcessReader(folder, FolderSettings()).read() == Reading((), NOTHING | {"denied": 2})
    unreadable.die(), deaf.die()


@contextmanager
def as_nobody(*folders: Path) -> Iterator[None]:
    """Without root's rights, if we have them, but with a way into `folders`."""
    if os.geteuid() != 0:
        yield
        return
    modes = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in zip(folders, modes):
            folder.chmod(mode)


def test_too_many_are_bounded_and_the_living_come_first(tmp_path: Path, clock: Clock) -> None:
    living = FakeAgent(tmp_path, process_sample(9)).start()
    written(living, 1)
    for rank in range(5):
        dead = FakeAgent(tmp_path, process_sample(rank))
        dead.publish()
        written(dead, clock.now - rank)
    reading = ProcessReader(tmp_path, FolderSettings(max_processes=3), clock).read()
    assert [rank.sample.identity.rank for rank in reading.ranks] == [0, 1, 9]
    assert skipped(reading) == {"too_many": 3}
    living.die()


def test_all_samples_together_are_bounded(tmp_path: Path, clock: Clock) -> None:
    for rank in range(5):
        FakeAgent(tmp_path, process_sample(rank)).publish()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    reading = ProcessReader(tmp_path, FolderSettings(max_total_size=size // 2), clock).read()
    assert (len(reading.ranks), skipped(reading)) == (2, {"too_many": 3})


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


def test_the_log_tells_what_is_skipped_once(agent: FakeAgent, reader: ProcessReader, caplog: Any) -> None:
    agent.leave(b"{")
    for _ in range(3):
        reader.read()
    (agent.folder / "notes.txt").touch()
    reader.read()
    told = [record.fields for record in caplog.records]
    assert told == [
        {"reason": "torn", "count": 1, "files": agent.name.sample},
        {"reason": "alien", "count": 1, "files": "notes.txt"},
    ]


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
    with pytest.raises(Unavailable, match="file: Not a directory; let the sidecar"):
        ProcessReader(tmp_path / "file", FolderSettings()).read()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    agent = FakeAgent(folder).start()
    assert [rank.alive for rank in ProcessReader(folder, FolderSettings()).read().ranks] == [True]
    agent.die()
