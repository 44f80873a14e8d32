"""Restarts that something stands in the way of for long: a save grows old, an alert ends, others wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpufrag.restarter import reasons
from gpufrag.restarter.checkpoint import Checkpoint, Waiting
from gpufrag.restarter.errors import Away
from gpufrag.restarter.kubernetes.cluster import Body, Owner, Ref
from gpufrag.restarter.kubernetes.owners import Resolved
from gpufrag.restarter.reasons import Skip
from gpufrag.restarter.settings import CheckpointSettings, RestarterConfig
from restarter.memory_cluster import MemoryCluster
from restarter.worker_rig import LIVE, Rig

HOLD_S = 30.0
CONFIG = RestarterConfig(checkpoint=CheckpointSettings(hold=HOLD_S))


class Saves:
    """Soon, and then does what a test wants."""

    def __init__(self) -> None:
        self.then: Callable[[], None] = lambda: None
        self.let_go = 0

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        yield 1.0
        self.then()
        return Checkpoint("All ranks saved.", saved=True, step=7, let_go=self._let_go)

    def _let_go(self) -> None:
        self.let_go += 1


def away(rig: Rig, seconds: float, *names: str) -> None:
    """From now on, for the calls of these names, or all."""
    ends_s = rig.hands.steady_s + seconds

    def fault(number: int, name: str, done: bool) -> None:
        if rig.hands.steady_s < ends_s and (not names or name in names):
            raise Away("503")

    rig.cluster.fault = fault


def saved_then_away(seconds: float, *names: str) -> tuple[Rig, Saves]:
    saves = Saves()
    rig = Rig(checkpointer=saves, config=CONFIG)
    saves.then = lambda: away(rig, seconds, *names)
    return rig.send(), saves


@pytest.mark.parametrize("names", [(), ("patch",)])
def test_a_save_that_has_grown_old_restarts_nothing(names: tuple[str, ...]) -> None:
    rig, saves = saved_then_away(4 * HOLD_S, *names)
    assert rig.go().told == ["started started", "refused late"]
    assert (rig.cluster.suspensions, rig.cluster.memory.phase, saves.let_go) == (0, None, 1)
    assert rig.cluster.memory.count == 1  # which the cool-down goes by


def test_a_save_that_is_fresh_is_restarted_from() -> None:
    rig, saves = saved_then_away(HOLD_S / 3)
    assert rig.go().told == ["started started", "restarted restarted"]
    assert saves.let_go == 0


def test_where_the_cluster_stays_away_it_is_said_and_the_claim_is_taken_away_later() -> None:
    rig, _ = saved_then_away(10 * LIVE.max_wait)
    assert rig.go().told == ["started started", "refused late"]
    rig.cluster.fault = lambda number, name, done: None
    for _ in range(2):
        rig.hands.move(1300.0)
        rig.go()
    assert (rig.cluster.suspensions, rig.cluster.memory.phase) == (0, None)


def test_a_job_that_was_told_to_stop_after_all_is_told_to_go_on() -> None:
    rig = Rig(checkpointer=(saves := Saves()), config=CONFIG)

    def lose_answers() -> None:
        ends_s = rig.hands.steady_s + 3 * HOLD_S

        def fault(number: int, name: str, done: bool) -> None:
            if rig.hands.steady_s < ends_s and (rig.cluster.suspended or (name == "patch" and done)):
                raise Away("no answer")

        rig.cluster.fault = fault

    saves.then = lose_answers
    assert rig.send().go().told[-1] == "restarted restarted"
    assert (rig.cluster.suspensions, rig.cluster.suspended) == (1, False)


class FullDisk(MemoryCluster):
    """Whose ConfigMap can be read and not written."""

    writable = False

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        if ref.kind == "ConfigMap" and not self.writable:
            raise Away("No space left on device")
        return super().patch(ref, body, resource_version, dry_run)


def test_a_restart_that_cannot_be_counted_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(replace(LIVE, max_wait=60.0), disk := FullDisk()).send()
    began_s = rig.hands.steady_s
    assert rig.go().told == ["refused no-memory"]
    assert rig.hands.steady_s - began_s <= 70
    assert (rig.cluster.suspensions, rig.cluster.memory.phase) == (0, None)
    assert "a call fails" in caplog.text
    disk.writable = True
    rig.hands.move(600)
    assert rig.go().cluster.suspensions == 0


def checked(rig: Rig, skip: Skip) -> list[float]:
    """When it was asked whether the alert is still true: the first time it is, and then no more."""
    asked: list[float] = []

    def check(alert: object) -> Skip | None:
        asked.append(rig.hands.steady_s)
        return skip if len(asked) > 1 else None

    rig.worker.check = check
    return asked


def test_an_alert_that_ends_while_the_restart_waits_to_be_counted_restarts_nothing() -> None:
    rig = Rig(cluster=(disk := FullDisk()))
    asked = checked(rig, Skip(reasons.NOT_FIRING))
    rig.send().turn()
    disk.writable = True
    assert rig.go().told == ["refused not-firing"]
    assert (len(asked), rig.cluster.suspensions, rig.cluster.memory.phase) == (2, 0, None)


def test_an_alert_that_ends_while_the_cluster_is_away_restarts_nothing() -> None:
    rig, saves = saved_then_away(HOLD_S / 3)
    checked(rig, Skip(reasons.NOT_FIRING))
    assert rig.go().told == ["started started", "refused not-firing"]
    assert (rig.cluster.suspensions, rig.cluster.memory.phase, saves.let_go) == (0, None, 1)


def test_who_did_not_wait_does_not_ask_twice() -> None:
    rig = Rig()
    asked = checked(rig, Skip(reasons.NOT_FIRING))
    assert rig.send().go().told[-1] == "restarted restarted"
    assert len(asked) == 1


def end(rig: Rig) -> Rig:
    """As SIGTERM does."""
    rig.worker.stop()
    rig.worker.run()
    return rig


def test_a_receiver_that_ends_gives_back_what_it_has_not_begun() -> None:
    rig = Rig(checkpointer=Saves(), config=CONFIG).send()
    rig.turn()
    assert rig.cluster.memory.phase == "claimed"
    end(rig)
    assert (rig.cluster.suspensions, rig.cluster.memory.phase, rig.told) == (0, None, [])


def test_a_receiver_that_ends_lets_ranks_go_that_have_saved() -> None:
    rig, saves = saved_then_away(HOLD_S)
    while rig.told != ["started started"]:
        rig.turn()
    end(rig)
    assert saves.let_go == 1
    assert rig.cluster.memory.phase == "claimed"  # for the cluster is away


def test_a_receiver_that_ends_leaves_a_suspended_job_to_the_next() -> None:
    rig = Rig().send()
    rig.turn()
    assert end(rig).cluster.suspended
    assert rig.again().go().told == ["resumed left-behind", "restarted restarted"]
