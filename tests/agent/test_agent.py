"""One agent with its thread, file and socket, over a scripted source."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_source import ScriptedSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import ProcessSample, decode

FAST = {"interval": 0.05, "budget": 1.0, "publish_every": 0.02}
Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def errors() -> ErrorCounter:
    return ErrorCounter()


@pytest.fixture
def begin(source: ScriptedSource, errors: ErrorCounter, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """An agent that publishes into the test's folder; stopped at the end."""
    begun = []

    def start(**settings: Any) -> Agent:
        agent = Agent(source, AgentSettings(**{**FAST, "folder": tmp_path, **settings}), errors)
        begun.append(agent)
        agent.start()
        return agent

    yield start
    for agent in begun:
        agent.stop()


def _published(folder: Path) -> ProcessSample | None:
    files = list(folder.glob("*.json"))
    return decode(files[0].read_bytes()) if files else None


def _moments(folder: Path) -> set[str]:
    sample = _published(folder)
    return {snapshot.at for device in sample.devices for snapshot in device.snapshots} if sample else set()


def _ask(folder: Path, command: str) -> dict[str, Any]:
    (path,) = folder.glob("*.sock")
    with socket.socket(socket.AF_UNIX) as caller, caller.makefile("rb") as answers:
        caller.settimeout(20)
        caller.connect(str(path))
        caller.sendall(json.dumps({"command": command}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(answers.readline())
        return answer


def test_agent_listens_before_it_publishes(begin, tmp_path: Path, eventually: Eventually) -> None:
    begin()
    eventually(lambda: _published(tmp_path))
    (file,), (listener,) = tmp_path.glob("*.json"), tmp_path.glob("*.sock")
    assert file.stem == listener.stem
    assert _ask(tmp_path, "ping")["ok"]


def test_agent_without_steps_samples_by_the_timer(begin, source, tmp_path: Path, eventually: Eventually) -> None:
    source.steps = False
    begin()
    eventually(lambda: _moments(tmp_path) == {"timer"})


def test_agent_with_steps_samples_at_the_boundary(begin, source, tmp_path: Path, eventually: Eventually) -> None:
    begin(interval=1000.0)
    eventually(lambda: _published(tmp_path))
    source.step()
    eventually(lambda: _moments(tmp_path) == {"boundary"})
    assert _published(tmp_path).steps == 1


def test_sample_now_publishes_a_fresh_sample(begin, source, tmp_path: Path, eventually: Eventually) -> None:
    begin(interval=1000.0, publish_every=500.0)
    eventually(lambda: _published(tmp_path))
    before = source.captures
    answer = _ask(tmp_path, "sample-now")
    assert (answer["ok"], answer["time"]) == (True, _published(tmp_path).time)
    assert _moments(tmp_path) == {"timer"}
    assert _ask(tmp_path, "sample-now")["time"] > answer["time"]
    assert source.captures == before + 1, "a second request gets the same snapshot"


def test_sample_now_times_out_with_an_error(
    begin, source, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufrag.agent.agent.ANSWER_TIMEOUT", 0.05)
    begin()
    eventually(lambda: _published(tmp_path))
    source.read = lambda: 1 // 0
    answer = _ask(tmp_path, "sample-now")
    assert (answer["ok"], "ask again later" in answer["error"]) == (False, True)


def test_stop_publishes_a_last_sample_and_closes_the_socket(
    begin, source, tmp_path: Path, eventually: Eventually
) -> None:
    agent = begin(publish_every=1000.0)
    eventually(lambda: _published(tmp_path))
    source.ooms = 7
    agent.stop()
    assert _published(tmp_path).devices[0].totals.counters.ooms == 7
    assert list(tmp_path.glob("*.sock")) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "gpufrag-sampler"]


def test_missing_folder_is_logged_once_and_agent_continues(
    begin, source, errors, tmp_path: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "gpufrag"):
        agent = begin(folder=tmp_path / "file" / "folder")
        eventually(lambda: errors.counts.get("publish", 0) > 3)
        source.step()
        eventually(lambda: agent.latest and agent.latest.devices[0].snapshots)
    (record,) = caplog.records
    assert "set GPUFRAG_DIR" in record.getMessage()


def test_folder_that_becomes_usable_is_used(begin, errors, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "place"
    place.touch()
    begin(folder=place)
    eventually(lambda: errors.counts.get("publish"))
    place.unlink()
    eventually(lambda: _published(place))
    assert _ask(place, "ping")["ok"]


def test_deleted_folder_is_created_again(begin, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "place"
    begin(folder=place)
    eventually(lambda: _published(place))
    place.rename(tmp_path / "elsewhere")
    eventually(lambda: place.is_dir() and _published(place))
    assert _ask(place, "ping")["ok"]


def test_file_and_socket_stay_in_one_folder(
    source, errors, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = iter([tmp_path / "first", tmp_path / "second"])
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("gpufrag.agent.agent.to_write", lambda environment: next(folders))
    agent = Agent(source, AgentSettings(**FAST), errors)
    agent.start()
    eventually(lambda: agent.latest)
    written = (tmp_path / "first").stat().st_mtime_ns
    eventually(lambda: (tmp_path / "first").stat().st_mtime_ns > written)
    assert list((tmp_path / "second").iterdir()) == []
    agent.stop()


def test_deleted_socket_is_created_again(begin, tmp_path: Path, eventually: Eventually) -> None:
    begin()
    eventually(lambda: list(tmp_path.glob("*.sock")))
    next(iter(tmp_path.glob("*.sock"))).unlink()
    eventually(lambda: list(tmp_path.glob("*.sock")))
    assert _ask(tmp_path, "ping")["ok"]


def test_failing_source_is_read_only_when_due(begin, source, errors, eventually: Eventually) -> None:
    read = source.read
    times = []

    def failing() -> None:
        times.append(None)
        raise RuntimeError("no")

    source.read = failing
    agent = begin(interval=1000.0)
    eventually(lambda: len(times) >= 3)
    source.read = read
    eventually(lambda: agent.latest and agent.latest.devices)
    assert agent.latest.health.errors == {"sampler": errors.counts["sampler"]}


def test_rank_set_late_is_published(
    begin, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    begin()
    eventually(lambda: _published(tmp_path))
    monkeypatch.setenv("RANK", "3")
    eventually(lambda: _published(tmp_path).identity.rank == 3)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_stopped_agent_gets_no_steps(begin, source) -> None:
    agent = begin()
    agent.stop()
    assert source.on_step is None
