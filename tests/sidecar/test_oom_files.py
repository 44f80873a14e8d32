"""Reports in the agents' folder: they outlive their process for a limited time, and are not trusted."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fake_agents import NOTHING, Clock
from gpufrag.sidecar.oom_files import read_all
from gpufrag.sidecar.processes import ProcessReader, Reading
from gpufrag.sidecar.sample_files import Skip
from gpufrag.wire.folder import FileName, ReportName, draft_name, write_file
from gpufrag.wire.oom_report import OomReport, encode
from gpufrag.wire.sample import Identity

WHO = Identity("host", 7, 1000.0, rank=1)
REPORT = OomReport(WHO, 1, 2000.0, 0, 3 << 30, "fragmentation")
DAY = 86400


def left(folder: Path, number: int = 1, age: float = 0.0, content: bytes | None = None) -> Path:
    """A report that its process has left so many seconds ago."""
    report = replace(REPORT, number=number, time=REPORT.time + number)
    file = folder / ReportName(FileName.of(WHO), number).file
    write_file(file, encode(report) if content is None else content)
    os.utime(file, (time.time() - age,) * 2)
    return file


def numbers(reader: ProcessReader | Path, most: int = 100) -> list[int]:
    reports = read_all(reader, most).reports if isinstance(reader, Path) else reader.read().ooms
    return [report.number for report in reports]


def test_latest_report_comes_first(tmp_path: Path, reader: ProcessReader) -> None:
    for number in (1, 3, 2):
        left(tmp_path, number, age=100 - number)
    assert numbers(reader) == [3, 2, 1]
    assert reader.read() == Reading((), NOTHING, reader.read().ooms)
    assert numbers(tmp_path, 2) == [3, 2]


def test_reports_outlive_their_process(tmp_path: Path, start_agent, reader: ProcessReader, clock: Clock) -> None:
    left(tmp_path)
    agent = start_agent()
    reader.read()
    agent.die()
    clock.now += 3600
    reading = reader.read()
    assert (reading.ranks, len(reading.ooms)) == ((), 1)


def test_reports_are_deleted_after_a_day(tmp_path: Path, reader: ProcessReader) -> None:
    young, old = left(tmp_path, 1, age=DAY - 60), left(tmp_path, 2, age=DAY + 60)
    assert numbers(reader) == [1]
    assert (young.exists(), old.exists()) == (True, False)


def test_future_report_time_does_not_extend_retention(tmp_path: Path, reader: ProcessReader, clock: Clock) -> None:
    report = left(tmp_path, age=-2 * DAY)
    for seconds in (0, DAY - 60):
        clock.now += seconds
        assert numbers(reader) == [1]
    clock.now += 120
    assert (numbers(reader), report.exists()) == ([], False)


def test_oldest_reports_beyond_the_limit_are_deleted(tmp_path: Path, reader: ProcessReader) -> None:
    for number in range(1, 10):
        left(tmp_path, number, age=100 - number)
    assert numbers(reader) == numbers(reader) == [9, 8, 7, 6, 5]
    assert len(list(tmp_path.iterdir())) == 5


def test_file_that_is_not_a_report_is_kept(tmp_path: Path, reader: ProcessReader) -> None:
    results = left(tmp_path, 1, age=2 * DAY, content=b'{"my": "results"}')
    copy = tmp_path / ReportName(FileName.of(WHO), 9).file
    copy.write_bytes(encode(REPORT))
    link = tmp_path / ReportName(FileName.of(WHO), 8).file
    link.symlink_to("/etc/passwd")
    left(tmp_path, 2)
    assert numbers(reader) == [2]
    assert all(path.exists() for path in (results, copy, link))


def test_other_files_displace_no_report(tmp_path: Path, reader: ProcessReader) -> None:
    """Many of them, and later ones: they must neither hide a report nor have it removed."""
    for number in (1, 2, 3):
        left(tmp_path, number, age=60)
    for number in range(10, 30):
        left(tmp_path, number, content=b"rubbish")
    assert numbers(reader) == numbers(reader) == [3, 2, 1]
    assert numbers(tmp_path, 3) == [3, 2, 1]
    assert {why: len(names) for why, names in read_all(tmp_path, 4).skipped.items()} == {Skip.TORN: 20}
    assert len(list(tmp_path.iterdir())) == 23


def test_unchanged_report_is_read_once(tmp_path: Path, reader: ProcessReader, monkeypatch: pytest.MonkeyPatch) -> None:
    left(tmp_path)
    assert numbers(reader) == [1]
    monkeypatch.setattr("gpufrag.sidecar.sample_files.os.open", lambda *_: pytest.fail("it was read again"))
    assert numbers(reader) == [1]


def test_old_report_draft_is_deleted(tmp_path: Path, reader: ProcessReader, clock: Clock) -> None:
    draft = tmp_path / draft_name(ReportName(FileName.of(WHO), 1).file)
    draft.write_bytes(b"{")
    reader.read()
    assert draft.exists()
    clock.now += 700
    reader.read()
    assert not draft.exists()


def test_folder_named_like_a_report_is_skipped(tmp_path: Path, reader: ProcessReader) -> None:
    left(tmp_path)
    (tmp_path / ReportName(FileName.of(WHO), 2).file).mkdir()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        assert numbers(reader) == [1]
    assert numbers(tmp_path) == [1]
    assert len(os.listdir("/proc/self/fd")) == len(before)
