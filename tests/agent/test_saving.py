"""A process's part in a checkpoint: commands come in other threads, the program's function runs in the trainer's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent.training_thread import PATIENCE, WHO, Trainer
from gpufrag.checkpoint.saving import CheckpointRequest, Saving
from gpufrag.errors import Unavailable, UsageError


@pytest.fixture
def seen() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def trainer(seen: list[tuple[int, str]]) -> Iterator[Trainer]:
    """Its function notes at which step and in which thread it ran."""

    def save(request: CheckpointRequest) -> str:
        seen.append((request.step, threading.current_thread().name))
        return f"at-{request.step}"

    made = Trainer(save)
    made.step(3)
    yield made
    made.close()


def test_it_saves_at_the_end_of_the_promised_step_in_the_trainers_thread(trainer: Trainer, seen: list) -> None:
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


def test_a_release_with_exit_ends_the_process_and_only_then(trainer: Trainer) -> None:
    trainer.ask("prepare")
    trainer.ask("at", step=4)
    trainer.ask("confirm")
    trainer.ask("release", exit=True)  # however early it comes
    assert not trainer.saving.leaving
    trainer.step()
    assert (trainer.ended, trainer.saving.leaving) == (["exit"], True)


def test_it_waits_at_the_step_for_the_word_and_trains_on_when_it_is_called_off(trainer: Trainer, seen: list) -> None:
    trainer.ask("prepare")
    trainer.ask("at", step=4)
    done = trainer.start_step()
    assert not done.wait(0.05)
    trainer.ask("cancel")
    assert done.wait(PATIENCE)
    assert seen == []
    assert trainer.ask("status")["state"] == "idle"


def test_without_a_word_it_trains_on_when_its_patience_is_over(trainer: Trainer, seen: list) -> None:
    trainer.ask("prepare")
    trainer.ask("at", step=4, patience=0.01)
    trainer.step()
    assert trainer.ask("status")["error"] == "no word came within 0.01 s"
    assert trainer.ask("confirm")["state"] == "idle"  # too late is not at the next step
    trainer.step(2)
    assert seen == []


def test_without_a_release_it_trains_on_when_its_hold_is_over(trainer: Trainer, seen: list) -> None:
    trainer.ask("prepare")
    trainer.ask("at", step=4, hold=0.01)
    trainer.ask("confirm")
    trainer.step(2)
    assert len(seen) == 1
    assert trainer.ended == []


def test_a_step_that_has_ended_is_not_promised(trainer: Trainer) -> None:
    trainer.ask("prepare")
    answer = trainer.ask("at", step=3)
    assert (answer["state"], answer["step"]) == ("prepared", 3)


def test_of_two_at_once_the_first_is_kept_and_asked_again_changes_nothing(trainer: Trainer) -> None:
    trainer.ask("prepare")
    trainer.ask("at", step=9)
    assert trainer.ask("prepare", id="two")["id"] == "one"
    assert trainer.ask("prepare")["state"] == "promised"
    assert trainer.ask("at", step=9)["target"] == 9
    with pytest.raises(Unavailable, match="checkpoint two was not prepared here: one is under way"):
        trainer.ask("at", id="two", step=9)


def test_what_was_not_confirmed_lapses_so_that_whoever_began_it_may_die() -> None:
    now = [0.0]
    saving = Saving(clock=lambda: now[0])
    saving.command("prepare", {"id": "one"}, WHO)
    now[0] = 61.0
    assert saving.command("prepare", {"id": "two"}, WHO)["id"] == "two"


def test_a_function_that_raises_is_told_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def save(request: CheckpointRequest) -> None:
        raise OSError("disk full")

    trainer = Trainer(save)
    trainer.step(3)
    trainer.ask("prepare")
    trainer.ask("at", step=4)
    trainer.ask("confirm")
    trainer.step(2)
    answer = trainer.ask("status")
    assert (answer["state"], answer["error"]) == ("failed", "the callback raised OSError: disk full")
    assert "disk full" in caplog.text
    trainer.close()


def test_a_process_that_cannot_save_says_so() -> None:
    saving = Saving()
    saving.hooked("optimizer")
    answer = saving.command("prepare", {"id": "one"}, WHO)
    assert (answer["callback"], answer["step"], answer["rank"]) == (False, None, 3)


def test_without_any_sign_of_steps_the_reason_is_told() -> None:
    saving = Saving()
    saving.register(lambda request: None, counted=False)
    assert "call gpufrag.step_ended()" in saving.command("prepare", {"id": "one"}, WHO)["error"]
    saving.ended(None)
    assert saving.command("status", {"id": "one"}, WHO)["error"] is None


def test_steps_of_another_thread_are_none(trainer: Trainer) -> None:
    trainer.saving.hooked("optimizer")
    trainer.saving.ended(99)
    assert trainer.ask("status")["step"] == 3


def test_two_optimizers_make_one_step_which_ends_with_the_second(trainer: Trainer, seen: list) -> None:
    for optimizer in ("optimizer", "other"):
        trainer.do(lambda one=optimizer: trainer.saving.hooked(one))
    trainer.ask("prepare")
    trainer.ask("at", step=5)
    trainer.ask("confirm")
    trainer.ask("release", exit=False)
    trainer.step()
    assert seen == []
    trainer.do(lambda: trainer.saving.hooked("other"))
    assert [step for step, _ in seen] == [5]


def test_a_program_that_tells_its_steps_is_believed_alone(trainer: Trainer, seen: list) -> None:
    trainer.do(lambda: trainer.saving.ended(100))
    trainer.step(5)
    assert trainer.ask("prepare")["step"] == 100
    trainer.ask("at", step=101)
    trainer.ask("confirm")
    trainer.ask("release", exit=False)
    trainer.step()
    trainer.do(lambda: trainer.saving.ended(101))
    assert [step for step, _ in seen] == [101]


def test_a_loop_that_leaps_over_the_step_says_so(trainer: Trainer, seen: list) -> None:
    trainer.do(lambda: trainer.saving.ended(100))
    trainer.ask("prepare")
    trainer.ask("at", step=105)
    trainer.ask("confirm")
    trainer.do(lambda: trainer.saving.ended(110))
    assert trainer.ask("status")["error"] == "step 105 never came: the one after it was 110"
    assert seen == []


def test_nothing_is_saved_while_a_graph_is_recorded() -> None:
    saving = Saving(recording=lambda: True)
    saving.register(lambda request: pytest.fail("it would break the graph"), counted=True)
    saving.ended(1)
    for command in ("prepare", "at", "confirm"):
        saving.command(command, {"id": "one", "step": 2, "patience": 1, "hold": 1}, WHO)
    saving.ended(2)
    assert saving.command("status", {"id": "one"}, WHO)["error"] == "a CUDA graph was being recorded"


@pytest.mark.parametrize(
    "wrong", [{"id": 5}, {"id": ""}, {"id": "a\nb"}, {"id": "x" * 101}, {"step": -1}, {"step": True}, {"patience": 1e9}]
)
def test_fields_that_cannot_be_are_refused(trainer: Trainer, wrong: dict[str, Any]) -> None:
    trainer.ask("prepare")
    with pytest.raises(UsageError, match="belong"):
        trainer.ask("at", **{"step": 9, **wrong})


def test_being_asked_how_it_stands_keeps_it_waiting(trainer: Trainer) -> None:
    now = [0.0]
    trainer.saving._clock = lambda: now[0]
    trainer.ask("prepare")
    trainer.ask("at", step=4, hold=10.0)
    trainer.ask("confirm")
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
