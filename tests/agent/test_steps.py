"""Steps of the loop, told from the steps of its optimizers."""

from __future__ import annotations

import pytest

from gpufrag.agent.steps import Steps


def _count(pattern: str) -> int:
    """Each letter is an optimizer that steps."""
    optimizers = {letter: object() for letter in pattern}
    steps = Steps()
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
def test_a_step_begins_when_an_optimizer_steps_again(pattern: str, expected: int) -> None:
    assert _count(pattern) == expected
