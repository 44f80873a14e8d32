"""A folder full of large files: scrapes still work and contain the job's own ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from fake_agents import FakeAgent, process_sample, skipped
from gpufrag.config.sidecar import FolderSettings
from gpufrag.sidecar import processes, sample_files
from gpufrag.sidecar.processes import MAX_MOMENTS, ProcessReader
from gpufrag.sidecar.sample_files import Skip
from gpufrag.wire.sample import DEVICES, SNAPSHOTS, ProcessSample

Start = Callable[[ProcessSample], FakeAgent]
WORST = DEVICES * SNAPSHOTS


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[FakeAgent] = []

    def start_one(sample: ProcessSample) -> FakeAgent:
        agents.append(FakeAgent(tmp_path, sample).start())
        return agents[-1]

    yield start_one
    for agent in agents:
        agent.die()


@pytest.fixture
def reader(tmp_path: Path) -> ProcessReader:
    return ProcessReader(tmp_path, FolderSettings())


def large(pid: int, devices: int = DEVICES, moments: int = SNAPSHOTS) -> ProcessSample:
    """A file with this many devices; by default the most that a reader accepts."""
    sample = process_sample(0, pid=pid)
    (device,) = sample.devices
    snapshots = tuple(replace(device.snapshots[0], at=f"moment {number}") for number in range(moments))
    return replace(sample, devices=tuple(replace(device, device=n, snapshots=snapshots) for n in range(devices)))


def pids(reader: ProcessReader) -> list[int]:
    return [rank.sample.identity.pid for rank in reader.read().ranks]


def test_total_of_snapshots_is_bounded(start: Start, reader: ProcessReader) -> None:
    ranks = [start(process_sample(rank)) for rank in range(8)]
    hostile = [start(large(pid)) for pid in range(10_000, 10_000 + MAX_MOMENTS // WORST + 8)]  # the latest
    reading = reader.read()
    shown = [rank.sample.identity.pid for rank in reading.ranks]
    assert shown[:8] == [rank.sample.identity.pid for rank in ranks]
    assert len(shown) + skipped(reading)["too_much"] == len(hostile) + len(ranks)
    assert sum(len(d.snapshots) for rank in reading.ranks for d in rank.sample.devices) <= MAX_MOMENTS


def test_host_full_of_ranks_is_shown_completely(start: Start, reader: ProcessReader) -> None:
    for pid in range(16):
        start(large(1000 + pid, devices=16))
    reading = reader.read()
    assert (len(reading.ranks), skipped(reading)) == (16, {})


def test_large_files_do_not_displace_small_ones(tmp_path: Path, start: Start) -> None:
    ranks = [start(process_sample(rank)) for rank in range(4)]
    for pid in range(10_000, 10_004):
        start(large(pid))
    settings = FolderSettings(max_total_size=sum(rank.file.stat().st_size for rank in ranks) + 1000)
    reading = ProcessReader(tmp_path, settings).read()
    assert [rank.sample.identity.rank for rank in reading.ranks] == [0, 1, 2, 3]
    assert skipped(reading) == {"too_many": 4}


@pytest.fixture
def six(start: Start, reader: ProcessReader, monkeypatch: pytest.MonkeyPatch) -> list[FakeAgent]:
    """Ranks of one size; three fit."""
    monkeypatch.setattr(processes, "MAX_MOMENTS", 3 * 4 * SNAPSHOTS)
    return [start(large(1000 + number, devices=4)) for number in range(6)]


def test_shown_files_do_not_depend_on_write_order(six: list[FakeAgent], reader: ProcessReader) -> None:
    first = pids(reader)
    assert len(first) == 3
    for step, agent in product(range(2), six):
        agent.publish(steps=step)
        assert pids(reader) == first


def test_files_beyond_the_bound_are_not_read(
    six: list[FakeAgent], reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    real = sample_files.read

    def read(path: Path, most: int) -> ProcessSample | Skip | None:
        opened.append(path)
        return real(path, most)

    monkeypatch.setattr(sample_files, "read", read)
    assert skipped(reader.read()) == {"too_much": 3}
    assert len(opened) == 4  # one to see that it is too much


def test_exited_processes_leave_room_for_living_ones(six: list[FakeAgent], reader: ProcessReader) -> None:
    first = set(pids(reader))
    for agent in six:
        if agent.sample.identity.pid in first:
            agent.die()
    reader.read()
    living = {rank.sample.identity.pid for rank in reader.read().ranks if rank.alive}
    assert len(living) >= 2
    assert living.isdisjoint(first)
