"""The agreement between simulated ranks: each way to success and to failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint.simulated_ranks import TERMS, Job, job
from gpufrag.checkpoint.protocol import MAX_TRIES, Answers, CheckpointFailed, RankCommand, Saved, target_step


def _saved(ranks: Job) -> list[list[int]]:
    return [rank.saved_at for rank in ranks.ranks]


def _fails(ranks: Job, match: str) -> None:
    """The checkpoint fails and all living ranks continue to train."""
    with pytest.raises(CheckpointFailed, match=match):
        ranks.run()
    before = [rank.step for rank in ranks.ranks if rank.alive]
    ranks.step()
    ranks.step()
    assert all(rank.step > old for rank, old in zip([r for r in ranks.ranks if r.alive], before) if old is not None)


def test_all_save_at_one_step_ahead_of_the_leader():
    ranks = job(4)
    ranks.ranks[2].step = 15
    result = ranks.run()
    assert result == Saved(18, "checkpoint-18", 4)  # a lead of 1 s is two steps of 0.5 s
    assert _saved(ranks) == [[18]] * 4


def test_saved_ranks_wait_for_release():
    ranks = job(2)
    assert ranks.run() is not None
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [13, 13]
    ranks.ask(RankCommand("release", {"id": TERMS.id, "exit": False}))
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14, 14]


def test_missing_release_ends_with_the_hold():
    ranks = job(2)
    assert ranks.run() is not None
    ranks.now += TERMS.hold
    ranks.step()
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14, 14]


def test_slow_rank_saves_at_the_same_step():
    ranks = job(3)
    slow = ranks.ranks[1]
    slow.step, slow.step_seconds = 2, 5.0
    assert ranks.run() == Saved(13, "checkpoint-13", 3)
    assert _saved(ranks) == [[13]] * 3


def test_passed_step_is_cancelled_and_a_later_one_tried():
    ranks = job(3)
    ranks.ranks[2].ahead = 4  # more than the first lead, less than the second
    result = ranks.run()
    assert result is not None
    assert result.step > 13
    assert _saved(ranks) == [[result.step]] * 3
    assert ranks.asked[:4] == ["prepare", "at", "cancel", "prepare"]


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"callback": False}, "^rank 1: no checkpoint callback"),
        ({"step": None}, "^rank 1 has not finished a step yet"),
        ({"breaks": True}, "^rank 1 did not save: the callback raised"),
        ({"ahead": 10_000}, f"in {MAX_TRIES} tries"),
        ({"size": (1 << 64) - 1}, r"^rank 3, 4, .*, … of 18446744073709551615: no answer"),
        ({"alive": False}, r"^rank 1 of 3: no answer"),
    ],
)
def test_fault_of_one_rank_is_named_and_all_continue(fault, problem):
    ranks = job(3)
    vars(ranks.ranks[1]).update(fault)
    _fails(ranks, problem)
    assert ranks.asked[-1] in ("cancel", "release")
    assert ranks.ranks[1].saved_at == []


def test_no_callback_anywhere_returns_none():
    ranks = job(2, callback=False, step=None)
    assert ranks.run() is None
    assert ranks.asked == ["prepare", "cancel"]


def test_impossible_step_length_is_no_error_of_the_coordinator():
    ranks = job(2)
    ranks.ranks[1].step_seconds = 5e-324
    assert 10 < target_step([rank.state() for rank in ranks.ranks], 1.0) < 10**8


def test_two_jobs_in_one_folder_fail_the_checkpoint():
    ranks = job(2)
    ranks.ranks += job(2).ranks
    for number, rank in enumerate(ranks.ranks[2:]):
        rank.state = lambda one=rank, pid=900 + number: replace(type(one).state(one), pid=pid)  # type: ignore[method-assign]
    _fails(ranks, "two processes claim rank 0")


def test_second_checkpoint_fails_and_the_first_continues():
    ranks = job(2)
    ranks.ranks[0].promise.prepare("other", ranks.now)
    _fails(ranks, "^rank 0 takes part in another checkpoint")
    assert ranks.ranks[0].promise.id == "other"


@pytest.mark.parametrize("command", ["at", "confirm", "status"])
def test_dying_rank_is_named_and_the_others_continue(command):
    ranks = job(3)

    def die(ask, rank) -> None:
        if ask.name == command and rank.rank == 1:
            rank.alive = False

    ranks.meanwhile = die
    _fails(ranks, "^rank 1 no longer answers")


def test_lost_confirm_is_sent_again():
    ranks = job(2)
    lost = iter([True])
    ranks.meanwhile = lambda ask, rank: ask.name == "confirm" and rank.rank == 1 and next(lost, False)
    assert ranks.run() == Saved(13, "checkpoint-13", 2)


def test_hanging_callback_is_reported_at_the_timeout():
    ranks = job(2)
    ranks.ranks[1]._save = lambda now: None  # type: ignore[method-assign]
    with pytest.raises(CheckpointFailed, match=r"^not all ranks have saved within 60 s: rank 1$"):
        ranks.run()


def test_empty_folder_says_what_to_check():
    _fails(Job([]), "no rank was found")


def test_process_without_rank_or_callback_is_ignored():
    ranks = job(2)
    heard = ranks.ask

    def with_a_server(ask):
        answer = heard(ask)
        return Answers(
            (*answer.ranks, replace(ranks.ranks[0].state(), pid=7, rank=None, callback=False)), answer.silent
        )

    ranks.ask = with_a_server  # type: ignore[method-assign]
    assert ranks.run() is not None
