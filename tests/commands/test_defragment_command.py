"""`gpufrag defragment`: which processes, what is printed, and what is printed if it cannot."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fake_source import RESULT, MovingSource, RecordingSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.checkpoint import participant
from gpufrag.cli import main
from gpufrag.errors import Unavailable
from gpufrag.wire.defragmentation import DefragmentOptions
from gpufrag.wire.folder import RECORDING_SUFFIX, FileName
from gpufrag.wire.sample import decode

Defragment = Callable[..., int]
MIB = 1 << 20
MOVED = replace(RESULT, moved_bytes=300 * MIB, largest_allocatable_before=20 * MIB, largest_allocatable_after=400 * MIB)


class Training:
    """An agent of rank 3 in this process, and a thread that makes steps while `goes_on`."""

    def __init__(self, source: RecordingSource, folder: Path) -> None:
        self.source, self.goes_on = source, True
        self.agent = Agent(source, AgentSettings(interval=1000.0, publish_every=0.02, folder=folder))
        self.agent.start()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._train)
        self._thread.start()
        while not list(folder.glob("*.json")):
            self._ending.wait(0.005)

    def wait_for_steps(self, count: int) -> None:
        participating = participant.this_process()
        until = (participating.state(self.agent._identity).step or 0) + count
        while (participating.state(self.agent._identity).step or 0) < until:
            self._ending.wait(0.005)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.agent.stop()

    def _train(self) -> None:
        while not self._ending.wait(0.005):
            if self.goes_on:
                self.source.step()


@pytest.fixture
def source() -> RecordingSource:
    return MovingSource(results=(MOVED,))


@pytest.fixture
def training(source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(participant, "_this_process", participant.Participant())
    made = Training(source, tmp_path / "folder")
    yield made
    made.close()


@pytest.fixture
def defragment(tmp_path: Path) -> Defragment:
    return lambda *words: main(["defragment", *words, "--folder", str(tmp_path / "folder")])


@pytest.mark.parametrize(
    "who", [(str(os.getpid()),), ("--rank", "3"), ("--all-ranks",)], ids=["pid", "rank", "all ranks"]
)
def test_result_of_a_running_process_is_printed(training, source, defragment, who, capsys) -> None:
    assert defragment(*who) == 0
    assert source.orders == [DefragmentOptions(time_limit=120.0)]
    step, line, left = capsys.readouterr().out.splitlines()
    assert step.startswith("step ")
    assert line == (
        "  rank 3, device 0: moved 300 MiB in 7 tensors in 250 ms; largest allocation 20.0 MiB -> 400 MiB, "
        "ratio 8.00 -> 1.00"
    )
    assert left == "    blocks left in place: 2 ipc"


def test_plan_and_targets_reach_the_process(training, source, defragment, capsys) -> None:
    words = ("--plan", "--verify", "--allow-graphs", "--target-ratio", "1.5", "--target-bytes", "1GiB")
    assert defragment("--rank", "3", *words, "--timeout", "30s") == 0
    assert source.orders == [DefragmentOptions(True, True, 1.5, 1 << 30, None, True, 30.0)]
    assert "would move 300 MiB in 7 tensors in about 300 ms" in capsys.readouterr().out


def test_json_has_every_figure(training, defragment, capsys) -> None:
    assert defragment("--rank", "3", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ranks"] == [{"rank": 3, "pid": os.getpid(), "devices": [asdict(MOVED)]}]


def test_heap_without_gaps_is_reported(training, source, defragment, capsys) -> None:
    source.results = (replace(MOVED, moved_bytes=0, ratio_before=1.0),)
    assert defragment("--rank", "3") == 0
    assert "nothing to move; largest allocation 20.0 MiB, ratio 1.00" in capsys.readouterr().out


def test_reason_of_a_hostile_process_is_printable(training, source, defragment, capsys) -> None:
    source.results = (replace(MOVED, left={"\x1b]0;title\x07": 2}),)
    assert defragment("--rank", "3") == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_sample_shows_the_new_heap_and_the_totals(training, source, defragment, tmp_path: Path) -> None:
    captures = source.captures
    assert defragment("--rank", "3") == 0
    assert source.captures > captures
    training.agent.sample_now()
    name = FileName.of(training.agent.latest.identity).sample
    (device,) = decode((tmp_path / "folder" / name).read_bytes()).devices
    assert device.defragmentations == source.defragmented(0)


def test_recording_that_contains_the_moves_is_dropped(training, source, defragment) -> None:
    training.agent._sampler.recorder.start_step(1.0)
    assert defragment("--rank", "3") == 0
    assert not source.underway
    assert RECORDING_SUFFIX not in training.agent._sampler.take_files()


@pytest.mark.parametrize("source", [RecordingSource()], ids=[""])
def test_process_whose_memory_cannot_be_moved_is_refused(training, defragment, capsys) -> None:
    assert defragment("--all-ranks") == 1
    assert "rank 3 cannot defragment: only memory of PyTorch's CUDA allocator can be moved" in capsys.readouterr().err


def test_refusal_is_printed(training, source, defragment, capsys) -> None:
    source.failure = Unavailable("cannot defragment: the process has CUDA graphs")
    assert defragment("--rank", "3") == 1
    assert "rank 3 did not defragment: cannot defragment: the process has CUDA graphs" in capsys.readouterr().err


def test_process_that_takes_no_steps_times_out(training, source, defragment, capsys) -> None:
    assert defragment("--rank", "3") == 0
    training.goes_on = False
    assert defragment("--rank", "3", "--timeout", "500ms") == 1
    assert len(source.orders) == 1
    assert "within 0.5 s: rank 3" in capsys.readouterr().err


def test_interrupted_command_withdraws_its_order(training, source, defragment) -> None:
    assert defragment("--rank", "3") == 0
    training.goes_on = False
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert defragment("--rank", "3") == 128 + signal.SIGINT
    training.goes_on = True
    training.wait_for_steps(3)
    assert len(source.orders) == 1


def test_process_before_its_first_step_is_reported(training, defragment, monkeypatch, capsys) -> None:
    monkeypatch.setattr(participant, "_this_process", participant.Participant())
    participant.this_process().defragment = lambda options: ()
    training.goes_on = False
    assert defragment("--rank", "3") == 1
    assert "rank 3 has not finished a step yet" in capsys.readouterr().err


def test_unknown_or_ended_process_is_an_error(training, defragment, capsys) -> None:
    assert defragment("--rank", "4") == 1
    assert "no agent of rank 4" in capsys.readouterr().err
    training.close()
    assert defragment("--rank", "3") == 1
    assert "the process has ended" in capsys.readouterr().err


def test_missing_ranks_are_named(training, defragment, monkeypatch, capsys) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    training.agent._identity = replace(training.agent._identity, world_size=8)
    assert defragment("--all-ranks") == 1
    assert "rank 0, 1, 2, … of 8: no answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [(), ("1", "--rank", "3"), ("--rank", "3", "--timeout", "0s"), ("--rank", "3", "--target-ratio", "0.5")],
)
def test_invalid_flags_are_refused(defragment, words: tuple[str, ...], capsys) -> None:
    assert defragment(*words) == 2
    assert capsys.readouterr().err.startswith("gpufrag: ")
