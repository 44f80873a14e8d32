"""How ranks agree: each way in which it comes about, and each in which it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agreement.simulated_ranks import TERMS, Job, job
from gpufrag.checkpoint.agree import TRIES
from gpufrag.checkpoint.records import Heard, NotSaved, Saved, release


def _saved(ranks: Job) -> list[list[int]]:
    return [rank.saved_at for rank in ranks.ranks]


def _fails(ranks: Job, match: str) -> None:
    """And everybody trains on."""
    with pytest.raises(NotSaved, match=match):
        ranks.run()
    before = [rank.step for rank in ranks.ranks if rank.alive]
    ranks.step()
    ranks.step()
    assert all(rank.step > old for rank, old in zip([r for r in ranks.ranks if r.alive], before) if old is not None)


def test_all_save_at_one_step_that_is_ahead_of_the_farthest() -> None:
    ranks = job(4)
    ranks.ranks[2].step = 15
    result = ranks.run()
    assert result == Saved(18, "checkpoint-18", 4)  # a lead of 1 s is two steps of 0.5 s
    assert _saved(ranks) == [[18]] * 4


def test_saved_ranks_stand_still_until_they_are_released() -> None:
    ranks = job(2)
    assert ranks.run() is not None
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [13, 13]
    ranks.ask(release(TERMS.id, end=False))
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14, 14]


def test_a_release_that_never_comes_holds_nobody_up_for_ever() -> None:
    ranks = job(2)
    assert ranks.run() is not None
    ranks.now += TERMS.hold
    ranks.step()
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14, 14]


def test_a_slow_rank_is_waited_for() -> None:
    ranks = job(3)
    slow = ranks.ranks[1]
    slow.step, slow.step_seconds = 2, 5.0
    assert ranks.run() == Saved(13, "checkpoint-13", 3)
    assert _saved(ranks) == [[13]] * 3


def test_a_rank_that_has_passed_the_step_calls_it_off_and_a_farther_one_is_tried() -> None:
    ranks = job(3)
    ranks.ranks[2].ahead = 4  # more than the first lead, less than the second
    result = ranks.run()
    assert result is not None
    assert result.step > 13
    assert _saved(ranks) == [[result.step]] * 3
    assert ranks.asked[:4] == ["prepare", "at", "cancel", "prepare"]


def test_ranks_that_are_always_faster_than_the_word_are_left_alone() -> None:
    ranks = job(2)
    ranks.ranks[1].ahead = 10_000
    _fails(ranks, f"in {TRIES} tries")
    assert _saved(ranks) == [[], []]


def test_without_any_callback_nobody_is_held_up() -> None:
    ranks = job(2, callback=False, step=None)
    assert ranks.run() is None
    assert ranks.asked == ["prepare", "cancel"]


def test_one_rank_without_a_callback_ends_it() -> None:
    ranks = job(3)
    ranks.ranks[1].callback = False
    _fails(ranks, r"^rank 1 has no checkpoint callback")
    assert _saved(ranks) == [[], [], []]


def test_a_rank_that_is_missing_is_named() -> None:
    ranks = job(4)
    del ranks.ranks[2]
    _fails(ranks, r"^rank 2 of 4 does not answer")


def test_two_jobs_in_one_folder_are_told_apart() -> None:
    ranks = job(2)
    ranks.ranks += job(2).ranks
    for number, rank in enumerate(ranks.ranks[2:]):
        rank.state = lambda one=rank, pid=900 + number: replace(type(one).state(one), pid=pid)  # type: ignore[method-assign]
    _fails(ranks, "two processes say that they are rank 0")


def test_a_rank_before_its_first_step_is_asked_again_later() -> None:
    ranks = job(2)
    ranks.ranks[0].step = None
    _fails(ranks, "^rank 0 has not ended a step yet")


def test_a_second_checkpoint_meanwhile_is_refused_and_the_first_goes_on() -> None:
    ranks = job(2)
    ranks.ranks[0].promise.prepare("other", ranks.now)
    _fails(ranks, "^rank 0 takes part in another checkpoint")
    assert ranks.ranks[0].promise.id == "other"


def test_a_callback_that_raises_is_told_and_all_train_on() -> None:
    ranks = job(3)
    ranks.ranks[2].breaks = True
    _fails(ranks, "^rank 2 did not save: the callback raised")
    assert ranks.asked[-1] == "release"


@pytest.mark.parametrize("command", ["at", "confirm", "status"])
def test_a_rank_that_dies_in_the_midst_is_named_and_the_others_train_on(command: str) -> None:
    ranks = job(3)

    def die(ask, rank) -> None:
        if ask.command == command and rank.rank == 1:
            rank.alive = False

    ranks.meanwhile = die
    _fails(ranks, "^rank 1 no longer answers")


def test_a_word_to_save_that_is_lost_is_said_again() -> None:
    ranks = job(2)
    lost = iter([True])
    ranks.meanwhile = lambda ask, rank: ask.command == "confirm" and rank.rank == 1 and next(lost, False)
    assert ranks.run() == Saved(13, "checkpoint-13", 2)


def test_a_callback_that_never_returns_is_told_when_the_time_is_up() -> None:
    ranks = job(2)
    ranks.ranks[1]._save = lambda now: None  # type: ignore[method-assign]
    with pytest.raises(NotSaved, match=r"^not all ranks have saved within 60 s: rank 1$"):
        ranks.run()


def test_nobody_found_says_where_to_look() -> None:
    _fails(Job([]), "no rank was found")


def test_a_process_that_is_no_rank_and_cannot_save_is_none_of_the_job() -> None:
    ranks = job(2)
    heard = ranks.ask

    def with_a_server(ask):
        answer = heard(ask)
        return Heard((*answer.ranks, replace(ranks.ranks[0].state(), pid=7, rank=None, callback=False)), answer.silent)

    ranks.ask = with_a_server  # type: ignore[method-assign]
    assert ranks.run() is not None
