"""Faults and kills at every Slurm command of a restart: the job is requeued once, and the record is complete."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpufrag.restarter import metrics, server
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.record import RestartRecord
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from gpufrag.restarter.slurm.backend import SignalCheckpointer, SlurmBackend
from gpufrag.restarter.slurm.commands import Answer
from gpufrag.restarter.state_file import StateFile
from restarter.memory_backend import Killed
from restarter.test_slurm_commands import FakeSlurm, row
from restarter.threaded_rig import alert
from restarter.worker_rig import MAX_TURNS, START_S, FakeTime

AWAY = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
CLAIM_LASTS_S = 1300.0


@dataclass
class FaultySlurm:
    """Requeues jobs, and fails or kills at one command, before or after it is carried out."""

    number: int | None = None
    done: bool = False
    kills: bool = False
    restarts: int = 0
    waits: bool = False
    failed: bool = False
    """Jobs fail at a signal."""
    calls: int = 0
    inner: FakeSlurm = field(default_factory=lambda: FakeSlurm(comment="gpufrag.dev/restart=true"))

    def __call__(self, command: Sequence[str]) -> Answer:
        fails = self.calls == self.number
        self.calls += 1
        if fails and not self.done:
            return self._fail()
        answer = self._do(list(command))
        return self._fail() if fails else answer

    def _do(self, command: list[str]) -> Answer:
        if command[:2] == ["scontrol", "requeue"]:
            self.restarts, self.waits, self.failed = self.restarts + 1, True, False
        if command[0] == "scancel":
            self.failed = True
        if command[:2] == ["scontrol", "update"]:
            self.waits = False
        state = {"State": "PENDING", "Reason": "BeginTime"} if self.waits else {"State": "RUNNING"}
        state |= {"State": "FAILED"} if self.failed else {}
        self.inner.table = row(RestartCnt=str(self.restarts), **state)
        return self.inner(command)

    def _fail(self) -> Answer:
        if self.kills:
            self.kills, self.number = False, None
            raise Killed
        return AWAY


class Rig:
    """Another one on the same folder is the next restarter."""

    def __init__(self, run: FaultySlurm, folder: Path, time: FakeTime) -> None:
        self.time, self.stream, self.state = time, io.StringIO(), StateFile(folder / "state.json")
        clock = Clock(lambda: time.wall_s, lambda: time.steady_s)
        checkpointer = SignalCheckpointer(run, clock.steady, 10.0)
        platform = server.Platform(SlurmBackend(run, self.state, {"ann"}, 1.0), self.state, checkpointer)
        config = RestarterConfig(policy=PolicySettings(dry_run=False))
        parts = server.assemble(config, platform, clock, self.stream)
        self.worker, self.metrics = parts.worker, parts.metrics

    def send(self) -> Rig:
        assert self.worker.offer([alert("train-7", starts_at_s=START_S - 400)])
        return self

    def go(self) -> Rig:
        for _ in range(MAX_TURNS):
            self.time.move(max(0.01, min(self.worker.turn(), 10.0)))
            if not self.metrics.value(metrics.IN_PROGRESS) and not self.metrics.value(metrics.QUEUE):
                return self
        raise AssertionError(f"it never ends: {self.stream.getvalue()}")

    @property
    def outcomes(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self.stream.getvalue().splitlines()]

    @property
    def record(self) -> RestartRecord:
        return RestartRecord.read(self.state.get("slurm/7").annotations)


def slurm(words: str = "", **fault: object) -> FaultySlurm:
    made = FaultySlurm(**fault)  # type: ignore[arg-type]
    made.inner.comment += words
    return made


def commands_of_a_restart(folder: Path, words: str = "") -> int:
    run = slurm(words)
    assert Rig(run, folder, FakeTime()).send().go().outcomes == ["started", "restarted"]
    return run.calls


@pytest.mark.parametrize("done", [False, True])
def test_one_failing_command_does_no_harm(tmp_path: Path, done: bool) -> None:
    for number in range(commands_of_a_restart(tmp_path)):
        (folder := tmp_path / str(number)).mkdir()
        run = slurm(number=number, done=done)
        rig = Rig(run, folder, FakeTime()).send().go()
        assert (run.restarts, rig.record.phase, rig.record.count) in [(1, None, 1), (0, None, 1)], number
        assert (run.restarts, run.waits) != (1, True), number


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("words", ["", " gpufrag.dev/signal=USR1"])
def test_killed_restarter_is_completed_by_the_next(tmp_path: Path, done: bool, words: str) -> None:
    for number in range(commands_of_a_restart(tmp_path, words)):
        (folder := tmp_path / str(number)).mkdir()
        run, time = slurm(words, number=number, done=done, kills=True), FakeTime()
        with pytest.raises(Killed):
            Rig(run, folder, time).send().go()
        rig = Rig(run, folder, time)
        for _ in range(2):
            rig.go()
            time.move(CLAIM_LASTS_S)
        rig.go()
        assert run.restarts <= 1, number
        assert (rig.record.phase, run.waits, run.failed) == (None, False, False), number
        assert rig.record.count <= 1, number
