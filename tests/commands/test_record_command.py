"""`gpufrag record`: which processes, which file, and what is printed if it fails."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_source import TracingSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.step_recorder import HISTORY_IN_USE
from gpufrag.cli import main

Record = Callable[..., int]


@pytest.fixture
def source() -> TracingSource:
    return TracingSource()


@pytest.fixture
def training(source: TracingSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent of rank 3 in this process, and a thread that makes steps."""
    monkeypatch.setenv("RANK", "3")
    agent = Agent(source, AgentSettings(interval=1000.0, publish_every=0.02, folder=tmp_path / "folder"))
    agent.start()
    ending = threading.Event()

    def train() -> None:
        while not ending.wait(0.005):
            source.step()

    trainer = threading.Thread(target=train)
    trainer.start()
    while not list((tmp_path / "folder").glob("*.json")):
        ending.wait(0.005)
    yield
    ending.set()
    trainer.join()
    agent.stop()


@pytest.fixture
def record(tmp_path: Path) -> Record:
    def run(*words: str) -> int:
        return main(["record", *words, "-o", str(tmp_path / "steps.pickle"), "--folder", str(tmp_path / "folder")])

    return run


@pytest.mark.parametrize("who", [(str(os.getpid()),), ("--rank", "3")], ids=["pid", "rank"])
def test_steps_of_one_process_are_written(training, source, record: Record, tmp_path: Path, who, capsys) -> None:
    assert record(*who, "--steps", "2") == 0
    assert pickle.loads((tmp_path / "steps.pickle").read_bytes()) == source.snapshot  # noqa: S301
    assert f"2 step(s) of process {os.getpid()}" in capsys.readouterr().out
    assert list((tmp_path / "folder").glob("*.trace")) == []


def test_all_ranks_get_a_file_each(training, record: Record, tmp_path: Path) -> None:
    assert record("--all-ranks", "--stacks") == 0
    assert [path.name for path in tmp_path.glob("*.pickle")] == ["steps-rank3.pickle"]


def test_process_that_records_itself_is_refused(training, source, record: Record, capsys) -> None:
    source.refusal = HISTORY_IN_USE
    assert record("--rank", "3") == 1
    assert "records its memory history itself" in capsys.readouterr().err


def test_process_that_takes_no_steps_times_out(training, source, record: Record, capsys) -> None:
    source.on_step = lambda optimizer: None
    assert record("--rank", "3", "--wait", "100ms") == 1
    assert "did not end within 0.1 s" in capsys.readouterr().err


def test_unknown_process_is_an_error(training, record: Record, capsys) -> None:
    assert record("--rank", "4") == 1
    assert "no agent of rank 4" in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("1", "--rank", "3"), ("--rank", "3", "--steps", "0")])
def test_invalid_choice_of_processes_is_refused(record: Record, words: tuple[str, ...], capsys) -> None:
    assert record(*words) == 2
    assert capsys.readouterr().err.startswith("gpufrag: ")
