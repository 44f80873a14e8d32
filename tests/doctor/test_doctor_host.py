"""The checks of a host, on folders with agents that are made up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_agents import FakeAgent, process_sample
from gpufrag.doctor.host import CHECKS, Host
from gpufrag.doctor.results import Fail, Ok, Result, Warn
from gpufrag.errors import Unavailable
from gpufrag.sidecar.readings import Device, NvmlReading, Problem
from live_ranks import live_ranks

NOW = 1010.0
ROOT = os.geteuid() == 0


def reading(*uuids: str, problems: tuple[Problem, ...] = ()) -> NvmlReading:
    devices = tuple(Device(index, uuid, "GPU", None, None) for index, uuid in enumerate(uuids))
    return NvmlReading(NOW, "580.159", devices, problems)


def look(check: str, folder: Path, nvml: NvmlReading | None = None, now: float = NOW) -> Result:
    def read() -> NvmlReading:
        if nvml is None:
            raise Unavailable("the library is not installed")
        return nvml

    (row,) = [row for row in CHECKS if row.name == check]
    return row.run(Host(lambda: folder, lambda: now, read, "http://127.0.0.1:1"))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    tmp_path.chmod(0o700)
    one = FakeAgent(tmp_path).start()
    yield one
    one.die()


def identified(agent: FakeAgent, **changes: Any) -> None:
    agent.publish(identity=replace(agent.sample.identity, **changes))


def test_a_private_folder_is_good(agent):
    result = look("folder", agent.folder)
    assert isinstance(result, Ok)
    assert "mode 0700" in result.text


def test_a_folder_that_is_missing_or_none_fails(tmp_path):
    assert "no such folder" in fails(look("folder", tmp_path / "absent"))
    (tmp_path / "file").touch()
    assert "no folder" in fails(look("folder", tmp_path / "file"))


def test_a_folder_in_which_anybody_may_remove_files_is_told(tmp_path):
    tmp_path.chmod(0o777)
    assert "anybody may remove" in warns(look("folder", tmp_path))
    tmp_path.chmod(0o1777)
    assert isinstance(look("folder", tmp_path), Ok)


@pytest.mark.parametrize(("mode", "told"), [(0o000, "not readable"), (0o500, "not writable")])
def test_a_folder_that_is_closed_to_this_user_is_told(tmp_path, mode, told, monkeypatch):
    tmp_path.chmod(mode)
    if ROOT:  # who may do everything
        monkeypatch.setattr(os, "access", lambda path, wanted: mode == 0o500 and wanted == os.R_OK | os.X_OK)
    try:
        assert told in look("folder", tmp_path).text
    finally:
        tmp_path.chmod(0o700)


def test_living_and_ended_processes_are_counted(agent):
    gone = FakeAgent(agent.folder, process_sample(rank=1)).start()
    gone.die()
    assert look("files", agent.folder) == Ok("1 living, 1 ended")


def test_a_torn_file_is_named(agent):
    agent.leave(b"{")
    assert agent.name.sample in warns(look("files", agent.folder))


def test_a_file_of_a_newer_gpufrag_is_told_with_its_remedy(agent):
    agent.publish(schema=99)
    assert "newer" in warns(look("files", agent.folder))
    assert "upgrade this gpufrag" in look("files", agent.folder).text


@pytest.mark.parametrize("check", ["files", "samples", "sockets", "steps", "versions"])
def test_where_nothing_lives_a_check_of_ranks_says_so(tmp_path, check):
    assert "no rank lives here" in warns(look(check, tmp_path))
    assert "no rank lives here" in warns(look(check, tmp_path / "absent"))


def test_the_age_of_samples(agent):
    assert look("samples", agent.folder) == Ok("the oldest is 10 s old")
    assert "nothing new for 300 s of rank 0" in fails(look("samples", agent.folder, now=1300.0))
    assert "of the future" in warns(look("samples", agent.folder, now=0.0))


def test_a_rank_that_answers(agent):
    thread = threading.Thread(target=answer_once, args=(agent, b'{"ok": true}\n'))
    thread.start()
    assert look("sockets", agent.folder) == Ok("all 1 answer")
    thread.join()


def answer_once(agent: FakeAgent, line: bytes) -> None:
    assert agent._listener
    # the first caller only knocks, to see whether somebody listens
    for _ in range(2):
        connection, _ = agent._listener.accept()
        with closing(connection):
            if connection.recv(100):
                connection.sendall(line)


def test_a_rank_that_lives_and_is_silent_is_told(agent, monkeypatch):
    monkeypatch.setattr("gpufrag.doctor.ranks.PATIENCE_S", 0.05)
    assert "rank 0 lives and does not answer" in warns(look("sockets", agent.folder))


def test_steps_are_seen_or_not(agent):
    assert look("steps", agent.folder) == Ok("every rank has seen steps")
    agent.publish(steps=0)
    assert "no step yet" in warns(look("steps", agent.folder))
    agent.publish(steps=None)
    assert "rank 0 has no step hook" in warns(look("steps", agent.folder))


@pytest.mark.parametrize(
    ("saves", "kind", "text"),
    [
        ([lambda request: None] * 2, Ok, "all 2 have told how to save"),
        ([lambda request: None, None], Warn, "rank 1 has no checkpoint callback"),
        ([], Warn, "no rank lives here"),
    ],
)
def test_ranks_that_cannot_save_are_told(tmp_path, saves, kind, text):
    with live_ranks(tmp_path / "agents", saves) as ranks:
        result = look("checkpoint", tmp_path / "agents")
        assert isinstance(result, kind)
        assert text in result.text
        assert [rank.saved for rank in ranks] == [[]] * len(saves), "it is asked, and not told to save"


@pytest.mark.parametrize(
    ("version", "told"), [("2.0.1", "an older torch"), ("2.14.0a0", "a newer torch"), ("3.0", "a newer torch")]
)
def test_versions_of_torch_that_were_not_tried_are_told(agent, version, told):
    identified(agent, framework_version=version)
    assert told in warns(look("versions", agent.folder))


def test_versions_that_were_tried_are_good(agent):
    assert look("versions", agent.folder) == Ok("torch 2.11.0")
    identified(agent, framework="jax", framework_version="0.7")
    assert look("versions", agent.folder) == Ok("jax 0.7")


def test_the_driver_shows_the_gpus_of_the_ranks(agent):
    (device,) = agent.sample.devices
    assert isinstance(look("nvml", agent.folder, reading(device.uuid)), Ok)
    agent.publish(devices=(replace(device, uuid=device.uuid.removeprefix("GPU-")),))
    assert isinstance(look("nvml", agent.folder, reading(device.uuid)), Ok)


def test_a_gpu_that_the_driver_does_not_show_is_told_with_its_rank(agent):
    assert "rank 0 uses a GPU that NVML does not show" in warns(look("nvml", agent.folder, reading("GPU-other")))


def test_no_nvml_is_no_failure_and_a_lost_gpu_is_one(agent):
    assert "the library is not installed" in warns(look("nvml", agent.folder))
    lost = reading(problems=(Problem(3, "GPU is lost", lost=True),))
    assert fails(look("nvml", agent.folder, lost)) == "GPU 3: GPU is lost"


def warns(result: Result) -> str:
    assert isinstance(result, Warn), result
    return result.text


def fails(result: Result) -> str:
    assert isinstance(result, Fail), result
    return result.text
