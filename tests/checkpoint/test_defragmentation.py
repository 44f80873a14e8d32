"""Ranks that defragment at one agreed step: how it ends, what it yields to, and what every fault leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoint.training_thread import WHO, give_order
from fake_source import RESULT
from gpufrag.checkpoint.coordinator import AskRanks, Coordinator, ranks_in
from gpufrag.checkpoint.participant import NO_MOVES, SEVERAL_THREADS, Participant
from gpufrag.checkpoint.protocol import CHECKPOINT as CHECKPOINT_ACTION
from gpufrag.checkpoint.protocol import DEFRAGMENT, Action, DefragmentationFailed, RankCommand, Saved, Terms
from gpufrag.errors import Unavailable, UsageError
from gpufrag.wire.defragmentation import DefragmentOptions, Result
from gpufrag.wire.sample import Identity
from live_ranks import PATIENCE, Ended, LiveRank, live_ranks, saves_at

OPTIONS = DefragmentOptions(target_ratio=1.5)
TERMS = Terms("two", timeout=PATIENCE, patience=PATIENCE, hold=PATIENCE, lead=0.05, action=DEFRAGMENT, options=OPTIONS)
CHECKPOINT = Terms("one", timeout=PATIENCE, lead=0.05)


class Moves:
    """What a rank's defragmentation did: its thread, and whether it waits before it ends."""

    def __init__(self, rank: LiveRank) -> None:
        self.rank, self.steps, self.threads = rank, list[int](), list[threading.Thread]()
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.failure: BaseException | None = None
        rank.participant.defragment = self

    def __call__(self, options: DefragmentOptions) -> tuple[Result, ...]:
        assert options == OPTIONS
        self.steps.append(self.rank.participant.state(self.rank.identity).step or 0)
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        return (RESULT,)


@contextmanager
def moving_ranks(folder: Path, count: int, save: Callable | None = None) -> Iterator[list[Moves]]:
    with live_ranks(folder, [save] * count) as ranks:
        moves = [Moves(rank) for rank in ranks]
        yield moves
        for one in moves:
            one.may_end.set()


def mover() -> Participant:
    """A process that can defragment."""
    participant = Participant()
    participant.defragment = lambda options: (RESULT,)
    return participant


def trains(moves: Moves) -> bool:
    """Whether the rank makes another step."""
    before, deadline = moves.rank.participant.state(moves.rank.identity).step or 0, time.monotonic() + PATIENCE
    while (moves.rank.participant.state(moves.rank.identity).step or 0) <= before:
        if time.monotonic() > deadline:
            return False
    return True


def order(folder: Path, terms: Terms = TERMS) -> Saved:
    done = Coordinator(ranks_in(folder), terms).save()
    assert done is not None
    return done


def before(name: str, act: Callable[[], object], ask: AskRanks) -> AskRanks:
    """Call `act` before the command `name` is first sent."""
    acts = iter([act])

    def hooked(command: RankCommand) -> object:
        if command.name == name:
            next(acts, lambda: None)()
        return ask(command)

    return hooked  # type: ignore[return-value]


@pytest.mark.parametrize("save", [None, saves_at], ids=["agent's steps", "own steps"])
def test_all_ranks_move_at_one_step_in_their_training_threads(tmp_path: Path, save: Callable | None) -> None:
    with moving_ranks(tmp_path, 3, save) as ranks:
        done = order(tmp_path)
        assert [one.steps for one in ranks] == [[done.step]] * 3
        assert [one.threads for one in ranks] == [[one.rank.thread] for one in ranks]
        assert [one.results for one in done.states] == [(RESULT,)] * 3
        assert all(trains(one) for one in ranks)  # no rank waits for a release
        assert not any(one.rank.saved or one.rank.exited for one in ranks)


def test_one_process_of_a_larger_job_moves_alone(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 1) as (one,):
        one.rank.identity = Identity("host", 100, 1.0, rank=5, world_size=8)
        with pytest.raises(DefragmentationFailed, match="of 8: no answer"):
            order(tmp_path)
        assert order(tmp_path, replace(TERMS, alone=True)).ranks == 1


def test_processes_without_ranks_share_no_step(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2) as ranks:
        for one in ranks:
            one.rank.identity = replace(one.rank.identity, rank=None, world_size=None)
        with pytest.raises(DefragmentationFailed, match="cannot agree on a step: name one process by PID"):
            order(tmp_path)


def test_rank_that_cannot_move_stops_all_and_is_named(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2) as ranks:
        ranks[1].rank.participant.defragment = None
        with pytest.raises(DefragmentationFailed, match=f"^rank 1 cannot defragment: {NO_MOVES}"):
            order(tmp_path)
        assert ranks[0].steps == []
        assert all(trains(one) for one in ranks)


def test_two_training_threads_are_refused() -> None:
    participant = mover()
    participant.boundary(1)
    thread = threading.Thread(target=participant.boundary, args=(2,))
    thread.start()
    thread.join()
    assert participant.command("prepare", {"id": "two"}, WHO, DEFRAGMENT)["error"] == SEVERAL_THREADS


def test_training_thread_may_be_replaced_by_another() -> None:
    participant = mover()
    for step in (1, 2):
        thread = threading.Thread(target=participant.boundary, args=(step,))
        thread.start()
        thread.join()
    answer = participant.command("prepare", {"id": "two"}, WHO, DEFRAGMENT)
    assert (answer["error"], answer["step"]) == (None, 2)


def test_refusal_is_reported_and_training_continues(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2) as ranks:
        ranks[1].failure = Unavailable("cannot defragment: the process has CUDA graphs")
        with pytest.raises(DefragmentationFailed, match=r"^rank 1 did not defragment: cannot defragment: the process"):
            order(tmp_path)
        assert all(trains(one) for one in ranks)


def test_unexpected_error_does_not_reach_the_program(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 1) as (one,):
        one.failure = ValueError("a bug")
        with pytest.raises(DefragmentationFailed, match="ValueError: a bug"):
            order(tmp_path)
        assert trains(one)


def test_interrupt_reaches_the_program(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 1) as (one,):
        one.failure = Ended()
        with pytest.raises(DefragmentationFailed, match="the program was interrupted"):
            order(tmp_path)
        one.rank.thread.join(PATIENCE)
        assert not one.rank.thread.is_alive()


@pytest.mark.parametrize("action", [CHECKPOINT_ACTION, DEFRAGMENT])
def test_interrupt_just_before_the_action_blocks_no_later_one(action: Action, monkeypatch: pytest.MonkeyPatch) -> None:
    participant = mover()
    participant.register(saves_at, hooked=True)
    participant.step_ended(1)
    give_order(participant, action)

    def interrupt(step: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(participant, "_act", interrupt)
    with pytest.raises(KeyboardInterrupt):
        participant.step_ended(2)
    answer = participant.command("status", {"id": "two"}, WHO)
    assert (answer["state"], answer["error"]) == ("failed", "the program was interrupted")
    participant.command("release", {"id": "two"}, WHO, action)
    assert participant.command("prepare", {"id": "three"}, WHO, action)["id"] == "three"


def test_second_order_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2) as ranks, ThreadPoolExecutor(1) as threads:
        ranks[0].may_end.clear()
        first = threads.submit(order, tmp_path)
        assert ranks[0].begun.wait(PATIENCE)
        with pytest.raises(DefragmentationFailed, match=r"^rank 0.* takes part in another"):
            order(tmp_path, replace(TERMS, id="three"))
        ranks[0].may_end.set()
        assert first.result().ranks == 2
        assert [len(one.steps) for one in ranks] == [1, 1]


def test_order_during_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2, saves_at) as ranks:
        coordinator = Coordinator(ranks_in(tmp_path), CHECKPOINT)
        assert coordinator.save() is not None
        with pytest.raises(DefragmentationFailed, match="takes part in another checkpoint"):
            order(tmp_path)
        coordinator.release(end=False)
        assert order(tmp_path).ranks == 2
        assert [len(one.rank.saved) for one in ranks] == [1, 1]


@pytest.mark.parametrize("command", ["at", "confirm"])
def test_checkpoint_replaces_an_order_that_has_not_begun(tmp_path: Path, command: str) -> None:
    with moving_ranks(tmp_path, 2, saves_at) as ranks:
        checkpoint = Coordinator(ranks_in(tmp_path), CHECKPOINT)
        saved: list[Saved | None] = []
        ask = before(command, lambda: saved.append(checkpoint.save()), ranks_in(tmp_path))
        with pytest.raises(DefragmentationFailed):
            Coordinator(ask, TERMS).save()
        assert [one.rank.saved for one in ranks] == [[saved[0].step]] * 2  # type: ignore[union-attr]
        assert [one.steps for one in ranks] == [[], []]
        checkpoint.release(end=False)
        assert all(trains(one) for one in ranks)


def test_checkpoint_waits_for_moves_in_progress(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 1, saves_at) as (one,), ThreadPoolExecutor(2) as threads:
        one.may_end.clear()
        moving = threads.submit(order, tmp_path)
        assert one.begun.wait(PATIENCE)
        checkpoint = Coordinator(ranks_in(tmp_path), CHECKPOINT)
        saving = threads.submit(checkpoint.save)
        time.sleep(0.05)  # the command waits in the rank meanwhile
        one.may_end.set()
        assert saving.result() is not None
        checkpoint.release(end=False)
        with suppress(DefragmentationFailed):  # the checkpoint may have replaced its result
            moving.result()
        assert (len(one.steps), len(one.rank.saved)) == (1, 1)


def test_rank_that_ends_before_the_step_is_named(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2) as ranks:
        ask = before("confirm", ranks[1].rank.close, ranks_in(tmp_path))
        with pytest.raises(DefragmentationFailed, match=r"^rank 1 no longer answers"):
            Coordinator(ask, TERMS).save()
        assert trains(ranks[0])


def test_rank_that_never_steps_again_times_out_and_moves_nothing_later(tmp_path: Path) -> None:
    with moving_ranks(tmp_path, 2) as ranks:
        stuck, goes_on = threading.Event(), threading.Event()

        def hang() -> None:
            ranks[1].rank.before_step = lambda: (stuck.set(), goes_on.wait(PATIENCE))
            assert stuck.wait(PATIENCE)

        ask = before("confirm", hang, ranks_in(tmp_path))
        with pytest.raises(DefragmentationFailed, match=r"^not all ranks have defragmented within 5 s: rank 1$"):
            Coordinator(ask, replace(TERMS, timeout=5.0, lead=0.5)).save()
        goes_on.set()
        assert trains(ranks[1])
        assert trains(ranks[1])
        assert ranks[1].steps == []


def test_confirmed_order_lapses_if_its_coordinator_dies() -> None:
    now = [0.0]
    participant = Participant(clock=lambda: now[0])
    participant.defragment = lambda options: pytest.fail("it has lapsed")
    participant.boundary(1)
    give_order(participant, DEFRAGMENT)
    now[0] = 5.0
    participant.boundary(2)
    assert participant.command("status", {"id": "two"}, WHO)["state"] == "idle"


def test_released_order_does_not_end_the_process(tmp_path: Path) -> None:
    """As a signal's checkpoint does with every promise that it finds."""
    with moving_ranks(tmp_path, 1) as (one,):
        order(tmp_path)
        one.rank.participant.command("release", {"id": "two", "exit": True}, one.rank.identity)
        assert trains(one)
        assert not one.rank.exited


def test_steps_counted_anew_drop_the_order() -> None:
    participant = mover()
    participant.boundary(7)
    give_order(participant, DEFRAGMENT, 9, ("prepare", "at"))
    participant.register(saves_at, hooked=True)
    answer = participant.command("status", {"id": "two"}, WHO)
    assert (answer["state"], answer["step"]) == ("failed", None)
    assert "on_checkpoint" in answer["error"]


def test_steps_that_the_program_reports_are_boundaries_too() -> None:
    moved: list[DefragmentOptions] = []
    participant = Participant()
    participant.defragment = lambda options: (moved.append(options), (RESULT,))[1]
    participant.step_ended(None)
    give_order(participant, DEFRAGMENT)
    participant.boundary(9)  # ignored from now on
    assert moved == []
    participant.step_ended(None)
    assert moved == [DefragmentOptions()]


def test_wait_at_a_replaced_promise_ends(tmp_path: Path) -> None:
    """A later promise must not be kept at the earlier step, even if the thread wakes up only after its confirmation."""
    participant = Participant()
    participant.defragment = lambda options: pytest.fail("it would be the wrong step")
    participant.boundary(1)
    for command, step in (("prepare", 2), ("at", 2)):
        participant.command(command, {"id": "two", "step": step, "patience": 9, "hold": 9}, WHO, DEFRAGMENT)
    trainer = threading.Thread(target=participant.boundary, args=(2,))
    trainer.start()
    while not participant._changed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    with participant._changed:
        participant._promise.cancel("two")
        participant._promise.prepare("two", 0.0, DEFRAGMENT, OPTIONS)
        participant._promise.at("two", 9, 2, 0.0, 9.0, 9.0)
        participant._promise.confirm("two", 0.0)
        participant._changed.notify_all()
    trainer.join(PATIENCE)
    assert not trainer.is_alive()


@pytest.mark.parametrize("options", [{"target_ratio": -1}, {"plan_only": 1}, {"target_bytes": "5"}])
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"^prepare: options\."):
        Participant().command("prepare", {"id": "two", "options": options}, WHO, DEFRAGMENT)
