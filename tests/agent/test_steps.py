"""Training steps are counted by the steps of optimizers."""

import sys

import pytest

from gpufrag.agent.steps import StepCounter


def _count(pattern: str) -> int:
    """Each letter is an optimizer that steps."""
    optimizers = {letter: object() for letter in pattern}
    steps = StepCounter()
    begun = [steps.note(optimizers[letter]) for letter in pattern]
    assert sum(begun) == steps.count
    return steps.count


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", 0),
        ("aaaa", 4),
        ("abababab", 4),  # a GAN
        ("dddgdddg", 6),  # one whose discriminator steps three times
        ("abcdefabcdefabcdef", 3),  # an optimizer for each parameter
        ("aaabbb", 5),  # another optimizer from the fourth step on
    ],
)
def test_step_begins_when_an_optimizer_steps_again(pattern: str, expected: int) -> None:
    assert _count(pattern) == expected


class Optimizer:
    pass


def test_new_optimizer_per_step_counts_and_is_forgotten() -> None:
    steps, made = StepCounter(), Optimizer()
    for _ in range(1000):
        steps.note(made)
        made = Optimizer()
    assert steps.count == 1000
    assert len(steps._stepped) <= 1


def test_deleted_optimizer_does_not_end_the_round() -> None:
    steps, first, second = StepCounter(), Optimizer(), Optimizer()
    assert [steps.note(first), steps.note(second)] == [True, False]
    del second
    assert [steps.note(Optimizer()), steps.note(first)] == [False, True]


def test_optimizer_without_weak_references_is_not_kept() -> None:
    class Slotted:
        __slots__ = ()

    steps, optimizer = StepCounter(), Slotted()
    before = sys.getrefcount(optimizer)
    assert [steps.note(optimizer), steps.note(optimizer)] == [True, True]
    assert sys.getrefcount(optimizer) == before
