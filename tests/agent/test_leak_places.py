"""Call sites of growing memory: named with history on, and only for memory that outlives its step."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from agent.watched_job import MB, job
from fake_source import HandClock
from gpufrag.model.call_sites import Held, Sites

PLACE = ("train.py:7 step",)


def at_one_place(blocks: int) -> Callable[[], Sites]:
    return lambda: {0: {PLACE: Held(blocks * MB, blocks)}}


@pytest.mark.parametrize("at", ["peak", "timer"])
def test_memory_held_within_a_step_is_not_a_leak_site(clock: HandClock, at: str) -> None:
    training = job(clock)
    watch = training.sampler._leaks
    assert watch is not None
    training.steps(60, kept=2 * MB)
    for held in (1, 2):
        watch.compare(at, at_one_place(held))
    leak = training.leak()
    assert leak is not None
    assert leak.stacks == ()


def test_growth_before_the_first_step_is_not_named(clock: HandClock) -> None:
    training = job(clock)
    watch = training.sampler._leaks
    assert watch is not None
    for held in (1, 2):
        watch.compare("timer", at_one_place(held))
    training.steps(60, kept=2 * MB)
    leak = training.leak()
    assert leak is not None
    assert leak.stacks == ()


def test_history_names_the_growing_place(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    held = iter(range(1, 1000))
    training = job(clock, places=lambda: {0: {PLACE: Held(next(held) * 40 * MB, next(held)), ("a",): Held(1, 1)}})
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for _ in range(5):
            training.steps(60, kept=2 * MB, length=0.2)
            leak = training.leak()
    assert leak is not None
    assert [place.frames for place in leak.stacks] == [PLACE]
    assert leak.stacks[0].grown > 0
    assert [PLACE[0] in line for line in caplog.messages] == [False, True]
