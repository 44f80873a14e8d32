"""An out-of-memory error leaves a report and a count that outlive the process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_source import ScriptedSource
from gpufrag.agent.agent import Agent, keep_report
from gpufrag.agent.settings import AgentSettings
from gpufrag.wire.folder import FileName, ReportName
from gpufrag.wire.oom_report import OomReport
from gpufrag.wire.oom_report import decode as decode_report
from gpufrag.wire.sample import Identity, Ooms, decode

GIB = 1 << 30


@pytest.fixture
def running(source: ScriptedSource, tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(source, AgentSettings(interval=1000.0, publish_every=500.0, folder=tmp_path))
    agent.start()
    yield agent
    agent.stop()


def _reports(folder: Path) -> list[OomReport]:
    names = filter(None, map(ReportName.parse, os.listdir(folder)))
    return [decode_report((folder / name.file).read_bytes()) for name in sorted(names)]


def _ooms(folder: Path) -> Ooms | None:
    (file,) = (file for file in folder.glob("*.json") if FileName.parse(file.name))
    (device,) = decode(file.read_bytes()).devices
    return device.ooms


def test_oom_count_is_published_at_once(running, source, tmp_path: Path, eventually: Callable) -> None:
    eventually(lambda: running.latest)
    source.fail(100 * GIB)
    eventually(lambda: _ooms(tmp_path).causes["limit"] == 1)
    assert [report.requested for report in _reports(tmp_path)] == [100 * GIB]


def test_copy_for_a_report_is_not_a_snapshot(running, source, tmp_path: Path, eventually) -> None:
    eventually(lambda: running.latest)
    source.fail(GIB)
    assert source.captures == 1
    assert running.latest.devices[0].snapshots == ()


def test_deleted_folder_is_created_again_for_a_report(source: ScriptedSource, tmp_path: Path, eventually) -> None:
    folder = tmp_path / "swept"
    agent = Agent(source, AgentSettings(interval=1000.0, publish_every=500.0, folder=folder))
    agent.start()
    eventually(lambda: agent.latest)
    shutil.rmtree(folder)
    source.fail(100 * GIB)
    agent.stop()
    assert [report.requested for report in _reports(folder)] == [100 * GIB]


DIES = """
import os, signal
from fake_source import ScriptedSource
from gpufrag import agent
source = ScriptedSource()
agent.start(source)
while agent.latest() is None: pass
source.fail(100 << 30)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_report_and_count_outlive_a_killed_process(scripts, folder: Path) -> None:
    with scripts.start(DIES) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == -9
    assert err.count("\n") == 1
    assert err.startswith("gpufrag: out of memory on device 0: limit; 100 GiB requested")
    assert [report.cause for report in _reports(folder)] == ["limit"]
    assert _ooms(folder).causes["limit"] == 1


FIRST = """
import os, sys
from fake_torch import Machine, OutOfMemoryError, torch_of
from gpufrag import agent
machine = Machine(initialised=False, contexts=set(), version="2.11.0")
sys.modules["torch"] = torch = torch_of(machine)
sys.modules["torch.cuda"] = torch.cuda
agent.start(interval=1000)
machine.initialise()
try:
    machine.fail(120 << 30)
except OutOfMemoryError:
    os._exit(3)
"""


def test_first_request_of_a_program_is_explained(scripts, folder: Path) -> None:
    with scripts.start(FIRST) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    (report,) = _reports(folder)
    assert (report.requested, report.cause) == (120 << 30, "neighbours")
    assert report.measured is not None


def test_only_latest_reports_are_kept(tmp_path: Path) -> None:
    who = Identity("host", 5, 1.0)
    for number in range(1, 21):
        keep_report(tmp_path, OomReport(who, number, 1.0, 0, GIB, "capacity"))
    assert [report.number for report in _reports(tmp_path)] == list(range(13, 21))
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in tmp_path.iterdir())
