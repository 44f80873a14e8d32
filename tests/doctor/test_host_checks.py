"""The checks of a host and its ranks, on folders with fake agents."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.results import text_of
from fake_agents import FakeAgent, process_sample
from gpufrag.doctor import host, ranks
from gpufrag.doctor.checks import Fail, Ok, Result, Warn
from gpufrag.errors import Unavailable
from gpufrag.sidecar.readings import Device, NvmlReading, Problem
from gpufrag.web.client import Client
from live_ranks import live_ranks

NOW = 1010.0
ROOT = os.geteuid() == 0


def reading(*uuids: str, problems: tuple[Problem, ...] = ()) -> NvmlReading:
    devices = tuple(Device(index, uuid, "GPU", None, None) for index, uuid in enumerate(uuids))
    return NvmlReading(NOW, "580.159", devices, problems)


def look(
    check: str, folder: Path, nvml: NvmlReading | None = None, now: float = NOW, proc: Path = Path("/x")
) -> Result:
    def read() -> NvmlReading:
        if nvml is None:
            raise Unavailable("the library is not installed")
        return nvml

    found = ranks.Ranks(folder, now, proc)
    for row in ranks.CHECKS:
        if row.name == check:
            return row.run(found)
    (one,) = [row for row in host.CHECKS if row.name == check]
    return one.run(host.Host(found, read, Client("http://127.0.0.1:1")))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    tmp_path.chmod(0o700)
    one = FakeAgent(tmp_path).start()
    yield one
    one.die()


def identified(agent: FakeAgent, **changes: Any) -> None:
    agent.publish(identity=replace(agent.sample.identity, **changes))


def test_private_folder_is_fine(agent):
    assert "mode 0700" in text_of(look("folder", agent.folder), Ok)


def test_missing_folder_and_file_fail(tmp_path):
    (tmp_path / "file").touch()
    assert "does not exist" in text_of(look("folder", tmp_path / "absent"), Fail)
    assert "is not a folder" in text_of(look("folder", tmp_path / "file"), Fail)


def test_folder_where_everyone_can_remove_files_warns(tmp_path):
    tmp_path.chmod(0o777)
    assert "every user can remove" in text_of(look("folder", tmp_path), Warn)
    tmp_path.chmod(0o1777)
    assert isinstance(look("folder", tmp_path), Ok)


@pytest.mark.parametrize(("mode", "text"), [(0o000, "not readable"), (0o500, "not writable")])
def test_folder_without_access_is_reported(tmp_path, mode, text, monkeypatch):
    tmp_path.chmod(mode)
    if ROOT:
        monkeypatch.setattr(os, "access", lambda path, wanted: mode == 0o500 and wanted == os.R_OK | os.X_OK)
    try:
        assert text in look("folder", tmp_path).text
    finally:
        tmp_path.chmod(0o700)


def test_living_and_exited_ranks_are_counted(agent):
    exited = FakeAgent(agent.folder, process_sample(rank=1)).start()
    exited.die()
    assert look("ranks", agent.folder) == Ok("1 living, 1 exited")


@pytest.mark.parametrize(("content", "text"), [(b"{", "torn"), (None, "upgrade this gpufrag")])
def test_unreadable_sample_file_is_reported_with_remedy(agent, content, text):
    if content is None:
        agent.publish(schema=99)
    else:
        agent.leave(content)
    found = text_of(look("ranks", agent.folder), Warn)
    assert text in found
    assert agent.name.sample in found


def process(proc: Path, pid: int, **environment: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    text = "".join(f"{name}={value}\0" for name, value in environment.items())
    (proc / str(pid) / "environ").write_text(text)


@pytest.mark.parametrize("folder", ["empty", "absent"])
def test_no_rank_says_what_is_running_instead(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    where, proc = tmp_path / folder, tmp_path / "proc"

    def found() -> str:
        return text_of(look("ranks", where, proc=proc), Warn)

    assert "no process of this user has the agent; start a job" in found()
    process(proc, 7, PYTHONPATH="/gpufrag/gpufrag/shim:/app")
    assert "agent loaded, but no CUDA allocator used yet, in pid 7" in found()
    process(proc, 8, GPUFRAG_DIR="/elsewhere")
    assert "GPUFRAG_DIR=/elsewhere in pid 8; run doctor and the sidecar with --folder /elsewhere" in found()


def test_age_of_samples(agent):
    assert look("samples", agent.folder) == Ok("the oldest is 10 s old")
    assert "rank 0: no sample for 300 s" in text_of(look("samples", agent.folder, now=1300.0), Fail)
    assert "from the future" in text_of(look("samples", agent.folder, now=0.0), Warn)


def test_rank_that_answers_is_fine(agent):
    def answer() -> None:
        for _ in range(2):  # the first caller only connects
            connection, _ = agent._listener.accept()
            with closing(connection):
                if connection.recv(100):
                    connection.sendall(b'{"ok": true}\n')

    thread = threading.Thread(target=answer)
    thread.start()
    assert look("sockets", agent.folder) == Ok("all 1 answer")
    thread.join()


def test_silent_rank_warns(agent, monkeypatch):
    monkeypatch.setattr("gpufrag.doctor.ranks.ANSWER_WITHIN_S", 0.05)
    assert "rank 0: alive, but no answer" in text_of(look("sockets", agent.folder), Warn)


@pytest.mark.parametrize(
    ("steps", "kind", "text"), [(120, Ok, "every rank"), (0, Warn, "no step yet"), (None, Warn, "rank 0: no step hook")]
)
def test_step_hook_is_reported(agent, steps, kind, text):
    agent.publish(steps=steps)
    assert text in text_of(look("steps", agent.folder), kind)


@pytest.mark.parametrize(
    ("saves", "kind", "text"),
    [
        ([lambda request: None] * 2, Ok, "all 2 can save"),
        ([lambda request: None, None], Warn, "rank 1: no checkpoint callback"),
        ([], Warn, "no rank answers"),
    ],
)
def test_ranks_that_cannot_save_warn(tmp_path, saves, kind, text):
    with live_ranks(tmp_path / "agents", saves) as live:
        assert text in text_of(look("checkpoint", tmp_path / "agents"), kind)
        assert [rank.saved for rank in live] == [[]] * len(saves), "status must not save"


@pytest.mark.parametrize(
    ("framework", "version", "kind", "text"),
    [
        ("torch", "2.0.1", Warn, "torch is older"),
        ("torch", "2.16.0a0", Warn, "torch is newer"),
        ("torch", "3.0", Warn, "torch is newer"),
        ("torch", "2.11.0", Ok, "torch 2.11.0"),
        ("jax", "0.7", Ok, "jax 0.7"),
    ],
)
def test_untested_torch_version_warns(agent, framework, version, kind, text):
    identified(agent, framework=framework, framework_version=version)
    assert text in text_of(look("versions", agent.folder), kind)


def test_driver_shows_the_gpus_of_ranks(agent):
    (device,) = agent.sample.devices
    assert isinstance(look("nvml", agent.folder, reading(device.uuid)), Ok)
    agent.publish(devices=(replace(device, uuid=device.uuid.removeprefix("GPU-")),))
    assert isinstance(look("nvml", agent.folder, reading(device.uuid)), Ok)
    assert "rank 0: NVML does not show the GPU" in text_of(look("nvml", agent.folder, reading("GPU-other")), Warn)


def test_missing_nvml_warns_and_lost_gpu_fails(agent):
    assert "the library is not installed" in text_of(look("nvml", agent.folder), Warn)
    lost = reading(problems=(Problem(3, "GPU is lost", lost=True),))
    assert text_of(look("nvml", agent.folder, lost), Fail) == "GPU 3: GPU is lost"
