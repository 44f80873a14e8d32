"""A participant whose commands arrive in this thread and whose callback runs in a training thread."""

from __future__ import annotations

import threading

import pytest

from checkpoint.training_thread import PATIENCE, WHO, Trainer
from gpufrag.checkpoint.participant import CheckpointRequest, Participant
from gpufrag.errors import Unavailable, UsageError
from helpers import wait_until


@pytest.fixture
def seen():
    return []


@pytest.fixture
def trainer(seen):
    """Its function notes at which step and in which thread it ran."""

    def save(request: CheckpointRequest) -> str:
        seen.append((request.step, threading.current_thread().name))
        return f"at-{request.step}"

    made = Trainer(save)
    made.step(3)
    yield made
    made.close()


def test_save_runs_at_the_promised_step_in_the_training_thread(trainer, seen):
    assert trainer.ask("prepare")["step"] == 3
    assert trainer.ask("at", step=5)["state"] == "promised"
    trainer.ask("confirm")
    trainer.step()
    assert seen == []
    done = trainer.start_step()
    while trainer.ask("status")["state"] != "saved":
        assert not done.wait(0.01)
    assert seen == [(5, trainer._thread.name)]
    assert trainer.ask("status")["path"] == "at-5"
    trainer.ask("release", exit=False)
    assert done.wait(PATIENCE)
    assert trainer.ended == []


def test_release_with_exit_ends_the_process_after_saving(trainer):
    trainer.order(4)
    trainer.ask("release", exit=True)  # however early it comes
    assert not trainer.participant.leaving
    trainer.step()
    assert (trainer.ended, trainer.participant.leaving) == (["exit"], True)


def test_cancel_while_waiting_at_the_step_continues_training(trainer, seen):
    trainer.ask("prepare")
    trainer.ask("at", step=4)
    done = trainer.start_step()
    assert not done.wait(0.05)
    trainer.ask("cancel")
    assert done.wait(PATIENCE)
    assert seen == []
    assert trainer.ask("status")["state"] == "idle"


def test_unconfirmed_promise_ends_after_its_patience(trainer, seen):
    trainer.ask("prepare")
    trainer.ask("at", step=4, patience=0.01)
    trainer.step()
    assert trainer.ask("status")["error"] == "not confirmed within 0.01 s"
    assert trainer.ask("confirm")["state"] == "idle"  # too late is not at the next step
    trainer.step(2)
    assert seen == []


def test_rank_that_releases_others_ends_after_them(trainer):
    """On a signal, rank 0 coordinates; if it ended first, nobody would release the others."""
    with trainer.participant.staying():
        trainer.order(4)
        trainer.ask("release", exit=True)
        done = trainer.start_step()
        wait_until(lambda: trainer.ask("status")["state"] == "saved")
        assert not trainer.participant.leaving
    assert done.wait(PATIENCE)
    assert trainer.ended == ["exit"]


def test_unreleased_rank_continues_after_its_hold(trainer, seen):
    trainer.order(4, hold=0.01)
    trainer.step(2)
    assert len(seen) == 1
    assert trainer.ended == []


def test_ended_step_is_not_promised(trainer):
    trainer.ask("prepare")
    answer = trainer.ask("at", step=3)
    assert (answer["state"], answer["step"]) == ("prepared", 3)


def test_second_checkpoint_is_refused_and_repeats_change_nothing(trainer):
    trainer.ask("prepare")
    trainer.ask("at", step=9)
    assert trainer.ask("prepare", id="two")["id"] == "one"
    assert trainer.ask("prepare")["state"] == "promised"
    assert trainer.ask("at", step=9)["target"] == 9
    with pytest.raises(Unavailable, match=r"^two is not prepared here: one is in progress"):
        trainer.ask("at", id="two", step=9)


def test_unconfirmed_checkpoint_lapses():
    now = [0.0]
    participant = Participant(clock=lambda: now[0])
    participant.command("prepare", {"id": "one"}, WHO)
    now[0] = 61.0
    assert participant.command("prepare", {"id": "two"}, WHO)["id"] == "two"


def test_raising_callback_is_reported_and_training_continues(caplog):
    def save(request: CheckpointRequest) -> None:
        raise OSError("disk full")

    trainer = Trainer(save)
    trainer.step(3)
    trainer.order(4)
    trainer.step(2)
    answer = trainer.ask("status")
    assert (answer["state"], answer["error"]) == ("failed", "the callback raised OSError: disk full")
    assert "disk full" in caplog.text
    trainer.close()


def test_process_without_callback_reports_it():
    participant = Participant()
    participant.optimizer_stepped("optimizer")
    answer = participant.command("prepare", {"id": "one"}, WHO)
    assert (answer["callback"], answer["step"], answer["rank"]) == (False, None, 3)


def test_unseen_steps_are_reported_with_the_remedy():
    participant = Participant()
    participant.register(lambda request: None, hooked=False)
    assert "call gpufrag.step_ended" in participant.command("prepare", {"id": "one"}, WHO)["error"]
    participant.step_ended(None)
    assert participant.command("status", {"id": "one"}, WHO)["error"] is None


def test_steps_of_another_thread_are_ignored(trainer):
    trainer.participant.optimizer_stepped("optimizer")
    trainer.participant.step_ended(99)
    assert trainer.ask("status")["step"] == 3


def test_two_optimizers_make_one_step(trainer, seen):
    for optimizer in ("optimizer", "other"):
        trainer.do(lambda one=optimizer: trainer.participant.optimizer_stepped(one))
    trainer.order(5)
    trainer.ask("release", exit=False)
    trainer.step()
    assert seen == []
    trainer.do(lambda: trainer.participant.optimizer_stepped("other"))
    assert [step for step, _ in seen] == [5]


def test_explicit_steps_replace_optimizer_steps(trainer, seen):
    trainer.do(lambda: trainer.participant.step_ended(100))
    trainer.step(5)
    assert trainer.ask("prepare")["step"] == 100
    trainer.ask("at", step=101)
    trainer.ask("confirm")
    trainer.ask("release", exit=False)
    trainer.step()
    trainer.do(lambda: trainer.participant.step_ended(101))
    assert [step for step, _ in seen] == [101]


def test_skipped_promised_step_fails_the_checkpoint(trainer, seen):
    trainer.do(lambda: trainer.participant.step_ended(100))
    trainer.order(105)
    trainer.do(lambda: trainer.participant.step_ended(110))
    assert trainer.ask("status")["error"] == "step 105 never ended; the next one was 110"
    assert seen == []


def test_nothing_is_saved_during_graph_capture():
    participant = Participant(capturing=lambda: True)
    participant.register(lambda request: pytest.fail("it would break the graph"), hooked=True)
    participant.step_ended(1)
    for command in ("prepare", "at", "confirm"):
        participant.command(command, {"id": "one", "step": 2, "patience": 1, "hold": 1}, WHO)
    participant.step_ended(2)
    assert participant.command("status", {"id": "one"}, WHO)["error"] == "a CUDA graph was being captured"


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 5},
        {"id": ""},
        {"id": "a\nb"},
        {"id": "x" * 101},
        {"step": -1},
        {"step": True},
        {"patience": 1e9},
        {"step": None},
    ],
)
def test_invalid_field_is_refused(trainer, wrong):
    trainer.ask("prepare")
    with pytest.raises(UsageError, match=r"at: (id|step|patience) "):
        trainer.ask("at", **{"step": 9, **wrong})


def test_status_command_extends_the_hold(trainer):
    now = [0.0]
    trainer.participant._clock = lambda: now[0]
    trainer.order(4, hold=10.0)
    done = trainer.start_step()
    while trainer.ask("status")["state"] != "saved":
        assert not done.wait(0.01)
    now[0] = 9.0
    assert trainer.ask("status")["state"] == "saved"
    now[0] = 18.0
    assert trainer.ask("status", id="two")["state"] == "saved"  # wakes it: it is only 9 s since the last
    assert not done.wait(0.05)
    now[0] = 19.0
    trainer.ask("status", id="two")
    assert done.wait(PATIENCE)
