"""The checkpoint before a restart."""

from __future__ import annotations

import time
from typing import Any

import pytest

from checkpoint.simulated_ranks import Job, job
from gpufrag.checkpoint.protocol import IDLE, SAVED, Answers, CheckpointFailed, RankCommand
from gpufrag.errors import Unavailable
from gpufrag.restarter.checkpoint import AgreedCheckpointer, Checkpoint
from restarter.worker_rig import Rig

PATIENCE = 20.0
ANY: Any = None


def _checkpointer(ranks: Job) -> AgreedCheckpointer:
    """The clock of the simulation moves with every command."""

    def ask(wanted: RankCommand) -> Answers:
        ranks.now += 0.5
        answers = ranks.ask(wanted)
        ranks.step()
        return answers

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


def test_ranks_save_and_wait_for_the_restart() -> None:
    ranks = job(4)
    assert _result(ranks) == Checkpoint("All 4 ranks saved at step 13 to checkpoint-13.", saved=True, step=13)
    assert [rank.promise.state for rank in ranks.ranks] == [SAVED] * 4
    ranks.now += 31
    ranks.step()
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14] * 4  # after their hold


def test_missing_callback_is_reported() -> None:
    result = _result(job(2, callback=False))
    assert (result.saved, "No rank has a checkpoint callback" in result.text) == (False, True)


def test_failing_callback_is_reported() -> None:
    ranks = job(2)
    ranks.ranks[1].breaks = True
    with pytest.raises(CheckpointFailed, match="rank 1 did not save: the callback raised"):
        _result(ranks)


def test_checkpoint_ends_at_the_timeout() -> None:
    ranks = job(2, step_seconds=1000.0)
    ranks.step = lambda: None  # type: ignore[method-assign]
    with pytest.raises(CheckpointFailed, match="not all ranks have saved within 3 s"):
        _result(ranks, timeout_s=3.0)


def test_unreachable_ranks_are_a_failure() -> None:
    def unreachable(wanted: RankCommand) -> Answers:
        raise Unavailable("the API server is away")

    waiting = AgreedCheckpointer(lambda job: unreachable, 30.0).save(ANY, 60.0)
    with pytest.raises(CheckpointFailed, match="the API server is away"):
        list(waiting)


def test_closing_the_checkpoint_lets_the_ranks_go() -> None:
    ranks = job(2)
    waiting = _checkpointer(ranks).save(ANY, 60.0)
    while "at" not in ranks.asked:
        next(waiting)
    waiting.close()
    _await_release(ranks)


def test_event_shows_step_and_path() -> None:
    rig = Rig(checkpointer=_checkpointer(job(2)))
    rig.send()
    deadline = time.monotonic() + PATIENCE
    while "started started" not in rig.outcomes:
        rig.turn(0.01)
        assert time.monotonic() < deadline, rig.outcomes
    (note,) = [event.text for event in rig.backend.events if "saved at step" in event.text]
    assert "All 2 ranks saved at step 13 to checkpoint-13." in note


def test_failed_checkpoint_leaves_the_job_alone() -> None:
    ranks = job(2)
    ranks.ranks[0].callback = False
    rig = Rig(checkpointer=_checkpointer(ranks))
    rig.send()
    deadline = time.monotonic() + PATIENCE
    while "refused checkpoint-failed" not in rig.outcomes:
        rig.turn(0.01)
        assert time.monotonic() < deadline, rig.outcomes
    assert rig.backend.suspensions == 0


def test_unused_checkpoint_lets_the_ranks_go() -> None:
    ranks = job(2)
    _result(ranks).let_go()
    _await_release(ranks)


def test_closing_at_interpreter_exit_raises_nothing() -> None:
    checkpointer = _checkpointer(job(2))
    waiting = checkpointer.save(ANY, 60.0)
    next(waiting)
    checkpointer._threads.shutdown()
    waiting.close()
