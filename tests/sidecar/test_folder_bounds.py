"""A folder with more, or larger, files than are read at once: each scrape shows the same ones, living ones first."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from fake_agents import Clock, FakeAgent, process_sample, skipped, written
from gpufrag.config.sidecar import FolderSettings
from gpufrag.sidecar import processes, sample_files
from gpufrag.sidecar.processes import MAX_MOMENTS, ProcessReader
from gpufrag.wire.sample import DEVICES, SNAPSHOTS, ProcessSample

WORST = DEVICES * SNAPSHOTS


def large(pid: int, devices: int = DEVICES) -> ProcessSample:
    """A file with this many devices; by default the most that a reader accepts."""
    sample = process_sample(0, pid=pid)
    (device,) = sample.devices
    snapshots = tuple(replace(device.snapshots[0], at=f"moment {number}") for number in range(SNAPSHOTS))
    return replace(sample, devices=tuple(replace(device, device=n, snapshots=snapshots) for n in range(devices)))


def pids(reader: ProcessReader) -> list[int]:
    return [rank.sample.identity.pid for rank in reader.read().ranks]


@pytest.fixture(params=["count", "snapshots"])
def six(request, start_agent, monkeypatch: pytest.MonkeyPatch) -> list[FakeAgent]:
    """Agents of one size; `reader` has room for three."""
    if request.param == "snapshots":
        monkeypatch.setattr(processes, "MAX_MOMENTS", 3 * 4 * SNAPSHOTS)
    return [start_agent(large(1000 + number, devices=4)) for number in range(6)]


@pytest.fixture
def reader(request, tmp_path: Path, clock: Clock) -> ProcessReader:
    by_count = getattr(getattr(request.node, "callspec", None), "params", {}).get("six") == "count"
    return ProcessReader(tmp_path, FolderSettings(max_processes=3) if by_count else FolderSettings(), clock)


def test_shown_files_do_not_depend_on_write_order(six, reader, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    first = pids(reader)
    assert len(first) == 3
    for ahead, (_, agent) in enumerate(product(range(2), six)):
        agent.publish()
        written(agent, clock.now + ahead)
        assert pids(reader) == first
    assert [record.getMessage() for record in caplog.records] == ["files skipped"]


def test_exited_processes_leave_room_for_living_ones(six, reader, clock: Clock) -> None:
    first = set(pids(reader))
    for agent in six:
        if agent.sample.identity.pid in first:
            agent.die()
        else:
            written(agent, clock.now + 10)
    reader.read()  # they are dead now
    living = {rank.sample.identity.pid for rank in reader.read().ranks if rank.alive}
    assert len(living) >= 2
    assert living.isdisjoint(first)


@pytest.mark.parametrize("six", ["snapshots"], indirect=True)
def test_files_beyond_the_bound_are_not_read(six, reader, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = sample_files.read
    monkeypatch.setattr(sample_files, "read", lambda path, most: opened.append(path) or real(path, most))
    assert skipped(reader.read()) == {"too_much": 3}
    assert len(opened) == 4  # one to see that it is too much


@pytest.mark.parametrize("six", ["count"], indirect=True)
def test_other_files_displace_no_process(six, reader, tmp_path: Path, clock: Clock) -> None:
    first = pids(reader)
    for pid in range(5000, 5010):
        name = f"host-{pid}-900000"
        (tmp_path / f"{name}.json").write_text("rubbish")
        (tmp_path / f"{name}.sock").write_text("no socket")
        os.utime(tmp_path / f"{name}.json", (clock.now + 60,) * 2)
    assert pids(reader) == first


def test_living_process_counts_before_newer_files(tmp_path: Path, start_agent, clock: Clock) -> None:
    written(start_agent(process_sample(9)), 1)
    for rank in range(5):
        dead = FakeAgent(tmp_path, process_sample(rank))
        dead.publish()
        written(dead, clock.now - rank)
    reading = ProcessReader(tmp_path, FolderSettings(max_processes=3), clock).read()
    assert [rank.sample.identity.rank for rank in reading.ranks] == [0, 1, 9]
    assert skipped(reading) == {"too_many": 3}


def test_total_size_of_samples_is_bounded(tmp_path: Path, start_agent) -> None:
    ranks = [start_agent(process_sample(rank)) for rank in range(4)]
    for pid in range(10_000, 10_004):
        start_agent(large(pid))
    settings = FolderSettings(max_total_size=sum(rank.file.stat().st_size for rank in ranks) + 1000)
    reading = ProcessReader(tmp_path, settings).read()
    assert [rank.sample.identity.rank for rank in reading.ranks] == [0, 1, 2, 3]
    assert skipped(reading) == {"too_many": 4}


def test_total_of_snapshots_is_bounded(start_agent, reader) -> None:
    ranks = [start_agent(process_sample(rank)) for rank in range(8)]
    hostile = [start_agent(large(pid)) for pid in range(10_000, 10_000 + MAX_MOMENTS // WORST + 8)]  # the latest
    reading = reader.read()
    shown = [rank.sample.identity.pid for rank in reading.ranks]
    assert shown[:8] == [rank.sample.identity.pid for rank in ranks]
    assert len(shown) + skipped(reading)["too_much"] == len(hostile) + len(ranks)
    assert sum(len(d.snapshots) for rank in reading.ranks for d in rank.sample.devices) <= MAX_MOMENTS


def test_host_full_of_ranks_is_shown_completely(start_agent, reader) -> None:
    for pid in range(16):
        start_agent(large(1000 + pid, devices=16))
    reading = reader.read()
    assert (len(reading.ranks), skipped(reading)) == (16, {})
