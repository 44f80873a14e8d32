"""Faults at every command of a requeue, and receivers killed there: the job is put back once, and it is remembered."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpufrag.restarter import metrics, server
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.off_cluster import key_of
from gpufrag.restarter.record import Memory
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from gpufrag.restarter.slurm import backend as slurm
from gpufrag.restarter.slurm.commands import Answer
from gpufrag.restarter.state_file import StateFile
from restarter.memory_cluster import Killed
from restarter.off_cluster_rig import alert
from restarter.test_slurm_commands import FakeSlurm, row
from restarter.worker_rig import ENOUGH, START_S, Hands

AWAY = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
CLAIM_LASTS_S = 1300.0


@dataclass
class Moody:
    """A Slurm that puts jobs back, and fails at one command: before it is done, or when it is and nobody knows."""

    number: int | None = None
    done: bool = False
    kills: bool = False
    restarts: int = 0
    waits: bool = False
    failed: bool = False
    """As all its jobs do at a signal."""
    calls: int = 0
    inner: FakeSlurm = field(default_factory=lambda: FakeSlurm(comment="gpufrag.dev/restart=true"))

    def wishing(self, wish: str) -> Moody:
        self.inner.comment += wish
        return self

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
    """A worker by a clock of its own; another on the same folder is the next receiver."""

    def __init__(self, run: Moody, folder: Path, hands: Hands) -> None:
        self.hands, self.audit, self.state = hands, io.StringIO(), StateFile(folder / "state.json")
        policy = PolicySettings(dry_run=False, namespaces=(slurm.NAMESPACE,))
        clock = Clock(lambda: hands.wall_s, lambda: hands.steady_s)
        checkpointer = slurm.SignalCheckpointer(run, clock, 10.0)
        cluster, targets = slurm.SlurmCluster(run, self.state), slurm.targets({"ann"}, hurry=True)
        config = RestarterConfig(policy=policy)
        parts = server.assemble(
            config, cluster, "-", checkpointer, clock, self.audit, targets=targets, locate=slurm.locate
        )
        self.worker, self.webhook, self.metrics = parts.worker, parts.webhook, parts.metrics

    def send(self) -> Rig:
        assert self.webhook.offer([alert("train-7", starts_at_s=START_S - 400)])
        return self

    def go(self) -> Rig:
        for _ in range(ENOUGH):
            self.hands.move(max(0.01, min(self.worker.turn(), 10.0)))
            if not self.metrics.value(metrics.IN_PROGRESS) and not self.metrics.value(metrics.QUEUE):
                return self
        raise AssertionError(f"it never ends: {self.audit.getvalue()}")

    @property
    def told(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self.audit.getvalue().splitlines()]

    @property
    def memory(self) -> Memory:
        ref = slurm._ref(7)
        return Memory.read(self.state.get(key_of(ref)).annotations)


def calls_of_a_restart(folder: Path, wish: str = "") -> int:
    run = Moody().wishing(wish)
    rig = Rig(run, folder, Hands()).send().go()
    assert rig.told == ["started", "restarted"]
    return run.calls


@pytest.mark.parametrize("done", [False, True])
def test_one_command_fails(tmp_path: Path, done: bool) -> None:
    for number in range(calls_of_a_restart(tmp_path)):
        (folder := tmp_path / str(number)).mkdir()
        run = Moody(number, done)
        rig = Rig(run, folder, Hands()).send().go()
        assert (run.restarts, rig.memory.phase, rig.memory.count) in [(1, None, 1), (0, None, 1)], number
        assert (run.restarts, run.waits) != (1, True), number


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("wish", ["", " gpufrag.dev/signal=USR1"])
def test_the_receiver_is_killed(tmp_path: Path, done: bool, wish: str) -> None:
    for number in range(calls_of_a_restart(tmp_path, wish)):
        (folder := tmp_path / str(number)).mkdir()
        run, hands = Moody(number, done, kills=True).wishing(wish), Hands()
        with pytest.raises(Killed):
            Rig(run, folder, hands).send().go()
        rig = Rig(run, folder, hands)
        for _ in range(2):
            rig.go()
            hands.move(CLAIM_LASTS_S)
        rig.go()
        assert run.restarts <= 1, number
        assert (rig.memory.phase, run.waits, run.failed) == (None, False, False), number
        assert rig.memory.count <= 1, number
