"""One view from several sources, each of which may fail separately."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fake_agents import FakeAgent
from gpufrag.config.sidecar import AnalysisSettings, FolderSettings, NvmlSettings
from gpufrag.errors import Unavailable
from gpufrag.sidecar import source
from gpufrag.sidecar.nvml import Collector
from gpufrag.sidecar.readings import Device, Memory, NvmlReading
from gpufrag.sidecar.source import FleetSource
from gpufrag.wire.folder import FileName

GIB = 1 << 30


def one_gpu() -> NvmlReading:
    memory = Memory(size=80 * GIB, free=60 * GIB, used=19 * GIB, reserved=GIB)
    return NvmlReading(1000.0, "580.159", (Device(0, "GPU-train-default", "H200", memory, {}),))


def no_driver() -> NvmlReading:
    raise Unavailable("no NVML library here")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., FleetSource]]:
    with contextlib.ExitStack() as stack:

        def make_source(nvml: Callable[[], NvmlReading] | None = None, **settings: Any) -> FleetSource:
            one = FleetSource(tmp_path, FolderSettings(**settings), Collector(0.2, nvml) if nvml else None)
            stack.callback(one.close)
            return one

        yield make_source


@pytest.fixture
def agent(start_agent) -> FakeAgent:
    return start_agent()


@pytest.fixture
def hang() -> Iterator[Callable[..., None]]:
    """A function that waits until the end of the test, and then fails: its thread must not go on in later tests."""
    release = threading.Event()

    def wait(*arguments: Any) -> None:
        release.wait()
        raise Unavailable("the test has ended")

    yield wait
    release.set()


def failures(fleet: Any) -> dict[str, str]:
    return {name: result.reason for name, result in fleet.collectors.items() if not result.success}


def test_ranks_and_devices_come_together(agent: FakeAgent, make: Any) -> None:
    fleet = make(one_gpu).read()
    assert [rank.sample for rank in fleet.ranks] == [agent.sample]
    assert [(device.uuid, device.size) for device in fleet.devices] == [("GPU-train-default", 80 * GIB)]
    assert set(fleet.collectors) == {"folder", "nvml", "join"}
    assert failures(fleet) == {}


def test_agents_reading_replaces_missing_nvml(agent: FakeAgent, make: Any) -> None:
    fleet = make(no_driver).read()
    assert failures(fleet) == {"nvml": "no NVML library here"}
    driver = agent.sample.devices[0].driver
    assert [(device.size, device.free) for device in fleet.devices] == [(driver.size, driver.free)]


def test_disabled_nvml_is_not_a_failure(agent: FakeAgent, make: Any) -> None:
    fleet = make(None).read()
    assert set(fleet.collectors) == {"folder", "join"}
    assert source.nvml_collector(NvmlSettings(enabled=False)) is None


def test_hung_driver_does_not_hide_the_ranks(agent: FakeAgent, make: Any, hang: Any) -> None:
    fleet = make(hang).read()
    assert len(fleet.ranks) == 1
    assert "no answer from nvml" in failures(fleet)["nvml"]


def test_hung_folder_does_not_hide_the_devices(make: Any, hang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.ProcessReader, "read", hang)
    fleet = make(one_gpu, deadline=0.1).read()
    assert (len(fleet.ranks), len(fleet.devices)) == (0, 1)
    assert "no answer from folder" in failures(fleet)["folder"]


def test_missing_folder_does_not_hide_the_devices(make: Any, tmp_path: Path) -> None:
    tmp_path.rmdir()
    fleet = make(one_gpu).read()
    tmp_path.mkdir()
    assert (len(fleet.ranks), len(fleet.devices)) == (0, 1)
    assert "no such folder yet" in failures(fleet)["folder"]


def test_error_in_the_join_does_not_hide_the_ranks(agent: FakeAgent, make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(source, "join", Mock(side_effect=KeyError("uuid")))
    fleet = make(one_gpu).read()
    assert [rank.sample for rank in fleet.ranks] == [agent.sample]
    assert failures(fleet) == {"join": "internal error (KeyError: 'uuid')"}


def test_source_is_ready_after_a_folder_reading(make: Any, tmp_path: Path) -> None:
    one = make(no_driver)
    assert one.waiting_for == "the first reading"
    tmp_path.rmdir()
    one.read()
    assert "no such folder yet" in one.waiting_for
    tmp_path.mkdir()
    one.read()
    assert one.waiting_for is None
    tmp_path.rmdir()
    one.read()
    assert one.waiting_for is None  # later failures are in the metrics
    tmp_path.mkdir()


def test_failure_and_recovery_are_logged_once(make: Any, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO")
    one = make(None)
    for action in (lambda: None, tmp_path.rmdir, lambda: None, tmp_path.mkdir, lambda: None):
        action()
        one.read()
    logged = [(record.getMessage(), record.fields["collector"]) for record in caplog.records]
    assert logged == [("collector failed", "folder"), ("collector works again", "folder")]


def test_reloads_add_no_thread_while_the_driver_hangs(agent: FakeAgent, make: Any, hang: Any, tmp_path: Path) -> None:
    one = make(hang)
    one.read()
    threads = threading.active_count()
    for seconds in (0.1, 0.2, 0.3):
        one.reconfigure(tmp_path, FolderSettings(), NvmlSettings(deadline=seconds))
        assert len(one.read().ranks) == 1
    assert threading.active_count() == threads


def test_reloads_add_no_thread_while_the_folder_hangs(make: Any, hang: Any, tmp_path: Path, monkeypatch: Any) -> None:
    read = source.ProcessReader.read
    monkeypatch.setattr(source.ProcessReader, "read", hang)
    one = make(None, deadline=0.05)
    one.read()
    threads = threading.active_count()
    for _ in range(3):
        one.reconfigure(tmp_path, FolderSettings(deadline=0.05), NvmlSettings(enabled=False))
        one.read()
    assert threading.active_count() == threads
    monkeypatch.setattr(source.ProcessReader, "read", read)
    (tmp_path / "other").mkdir()
    one.reconfigure(tmp_path / "other", FolderSettings(), NvmlSettings(enabled=False))
    assert failures(one.read()) == {}  # another folder does not wait for the one that hangs


def test_folder_that_hangs_after_a_reading_does_not_hold_up_the_figures(
    agent: FakeAgent, hang: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    one = FleetSource(tmp_path, FolderSettings(), None, AnalysisSettings())
    assert failures(one.read()) == {}
    one._folder.deadline = 0.05
    monkeypatch.setattr(Path, "lstat", hang)
    for _ in range(2):
        fleet = one.read()
        assert len(fleet.ranks) == 1
        assert "no answer from folder" in failures(fleet)["folder"]
    one.close()


def test_reload_while_a_recording_hangs_gives_up_on_its_thread(
    agent: FakeAgent, hang: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    reading = threading.Event()

    def open_plain(path: Path) -> Any:
        reading.set()
        return hang(path)

    monkeypatch.setattr("gpufrag.sidecar.analysis.open_plain", open_plain)
    monkeypatch.setattr("gpufrag.sidecar.analysis.KILL_TIMEOUT", 0.05)
    (tmp_path / FileName.of(agent.sample.identity).recording).write_bytes(b"")
    one = FleetSource(tmp_path, FolderSettings(), None, AnalysisSettings())
    one.read()
    assert reading.wait(timeout=30)
    one.reconfigure(tmp_path, FolderSettings(), NvmlSettings(enabled=False))
    assert len(one.read().ranks) == 1
    one.close()


def test_reload_switches_nvml_on_and_off(agent: FakeAgent, make: Any, tmp_path: Path) -> None:
    one = make(one_gpu)
    one.reconfigure(tmp_path, FolderSettings(), NvmlSettings(enabled=False))
    assert set(one.read().collectors) == {"folder", "join"}
    one.reconfigure(tmp_path, FolderSettings(), NvmlSettings())
    assert set(one.read().collectors) == {"folder", "nvml", "join"}
