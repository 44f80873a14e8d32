"""The checkpoint before a restart: what the receiver makes of what the ranks agree on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from checkpoint.simulated_ranks import Job, job
from gpufrag.checkpoint.protocol import IDLE, SAVED, Answers, CheckpointFailed, RankCommand
from gpufrag.errors import Unavailable
from gpufrag.restarter.agreed import NO_CALLBACK, AgreedCheckpointer
from gpufrag.restarter.checkpoint import Checkpoint
from restarter.worker_rig import Rig

PATIENCE = 20.0
ANY: Any = None


def _checkpointer(ranks: Job) -> AgreedCheckpointer:
    """The clock of the simulation moves with every question."""

    def ask(wanted: RankCommand) -> Answers:
        ranks.now += 0.5
        heard = ranks.ask(wanted)
        ranks.step()
        return heard

    return AgreedCheckpointer(lambda job: ask, hold_s=30.0, clock=ranks.clock)


def _result(ranks: Job, timeout_s: float = 60.0) -> Checkpoint:
    waiting = _checkpointer(ranks).save(ANY, timeout_s)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            result: Checkpoint = end.value
            return result
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _await_release(ranks: Job) -> None:
    deadline = time.monotonic() + PATIENCE
    while ranks.asked[-1] != "release":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert all(rank.promise.state == IDLE for rank in ranks.ranks)


def test_step_and_path_are_named_and_the_ranks_stand_still_for_the_restart() -> None:
    ranks = job(4)
    assert _result(ranks) == Checkpoint("All 4 ranks saved at step 13 to checkpoint-13.", saved=True, step=13)
    assert [rank.promise.state for rank in ranks.ranks] == [SAVED] * 4
    ranks.now += 31
    ranks.step()
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14] * 4  # nobody came to stop them


def test_without_a_callback_it_is_said_that_work_is_lost() -> None:
    assert _result(job(2, callback=False)) is NO_CALLBACK


def test_what_went_wrong_is_told() -> None:
    ranks = job(2)
    ranks.ranks[1].breaks = True
    with pytest.raises(CheckpointFailed, match="rank 1 did not save: the callback raised"):
        _result(ranks)


def test_it_ends_at_the_time_out() -> None:
    ranks = job(2, step_seconds=1000.0)
    ranks.step = lambda: None  # type: ignore[method-assign]  # they never come to the step
    with pytest.raises(CheckpointFailed, match="not all ranks have saved within 3 s"):
        _result(ranks, timeout_s=3.0)


def test_ranks_that_cannot_be_reached_are_a_failure() -> None:
    def nobody(wanted: RankCommand) -> Answers:
        raise Unavailable("the API server is away")

    waiting = AgreedCheckpointer(lambda job: nobody, 30.0).save(ANY, 60.0)
    with pytest.raises(CheckpointFailed, match="the API server is away"):
        list(waiting)


def test_given_up_it_lets_the_ranks_go() -> None:
    ranks = job(2)
    waiting = _checkpointer(ranks).save(ANY, 60.0)
    while "at" not in ranks.asked:
        next(waiting)
    waiting.close()
    _await_release(ranks)


def test_a_restart_tells_step_and_path_in_its_event() -> None:
    rig = Rig(checkpointer=_checkpointer(job(2)))
    rig.send()
    deadline = time.monotonic() + PATIENCE
    while "RestartStarted" not in rig.events:
        rig.turn(0.01)
        assert time.monotonic() < deadline, rig.told
    (note,) = [event.note for event in rig.cluster.events if "saved at step" in event.note]
    assert "All 2 ranks saved at step 13 to checkpoint-13." in note


def test_a_checkpoint_that_fails_leaves_the_job_alone() -> None:
    ranks = job(2)
    ranks.ranks[0].callback = False
    rig = Rig(checkpointer=_checkpointer(ranks))
    rig.send()
    deadline = time.monotonic() + PATIENCE
    while "refused checkpoint" not in rig.told:
        rig.turn(0.01)
        assert time.monotonic() < deadline, rig.told
    assert rig.cluster.suspensions == 0


def test_one_that_was_agreed_on_for_nothing_lets_the_ranks_go() -> None:
    ranks = job(2)
    _result(ranks).let_go()
    _await_release(ranks)


def test_given_up_when_the_interpreter_ends_it_says_nothing() -> None:
    checkpointer = _checkpointer(job(2))
    waiting = checkpointer.save(ANY, 60.0)
    next(waiting)
    checkpointer._threads.shutdown()
    waiting.close()
