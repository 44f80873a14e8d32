"""The search for the peak beside a simulated training process, at the agent's default budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from gpufrag.agent import peaks
from gpufrag.agent.peak import TIMER
from gpufrag.agent.peaks import STUDIES, TRIES
from gpufrag.agent.settings import AgentSettings
from simulated_training import MIB, Decoder, Event, Training, percentiles, steps

Step = Callable[[Random], Iterator[Event]]
SMALL, LARGE = Decoder(), Decoder(operation=400e-6)


def trained(step: Step, count: int = 60, seed: int = 0) -> Training:
    rng = Random(seed)
    return Training(steps(count, lambda _: step(rng)), seed=seed).run()


def fixed(rng: Random) -> Iterator[Event]:
    return SMALL.step(rng)


def varying(rng: Random) -> Iterator[Event]:
    return SMALL.step(rng, rng.uniform(0.15, 1.6))


def varying_large(rng: Random) -> Iterator[Event]:
    return LARGE.step(rng, rng.uniform(0.15, 1.6))


def minute(rng: Random) -> Iterator[Event]:
    return Decoder(operation=0.17).step(rng, rng.uniform(0.5, 1.5))


def accumulated(rng: Random) -> Iterator[Event]:
    return SMALL.step(rng, rng.uniform(0.5, 1.5), micro_batches=4)


def minute_of_micro_batches(rng: Random) -> Iterator[Event]:
    return Decoder(operation=0.0027).step(rng, micro_batches=64)


def sometimes_evaluated(rng: Random) -> Iterator[Event]:
    if rng.random() < 0.2:
        yield from SMALL.evaluate(rng, 1.0, batches=10)
    yield from varying(rng)


def two_models(rng: Random) -> Iterator[Event]:
    yield from SMALL.step(rng, 0.5)
    yield from SMALL.step(rng, 1.0)


def other_layers_each_time(rng: Random) -> Iterator[Event]:
    return Decoder(layers=rng.choice([6, 7, 8, 9])).step(rng, rng.uniform(0.3, 1.5))


def mostly_loss(rng: Random) -> Iterator[Event]:
    return Decoder(activation=2 * MIB).step(rng, rng.uniform(0.3, 1.5))


def flat(rng: Random) -> Iterator[Event]:
    return iter([Event(20e-6, 512, True), Event(20e-6, -512, True)] * 200)


def replayed_graph(rng: Random) -> Iterator[Event]:
    return iter([Event(0.02, 0, True)])


@pytest.mark.parametrize(
    ("step", "median", "tenth"),
    [
        (fixed, 0.92, 0.85),
        (varying, 0.88, 0.75),
        (varying_large, 0.88, 0.8),
        (minute, 0.92, 0.9),
        (accumulated, 0.82, 0.65),
        (minute_of_micro_batches, 0.7, 0.55),
        (sometimes_evaluated, 0.85, 0.7),
        (two_models, 0.88, 0.8),
        (other_layers_each_time, 0.75, 0.65),
        (mostly_loss, 0.85, 0.7),
    ],
)
def test_copies_come_near_the_peak(step: Step, median: float, tenth: float) -> None:
    training = trained(step, 30 if step is minute_of_micro_batches else 100)
    found = percentiles(training.coverage)
    assert len(training.coverage) >= len(training.methods) // 4
    assert (found[1] >= median, found[0] >= tenth) == (True, True), found


@pytest.mark.parametrize("step", [flat, replayed_graph])
def test_where_there_is_no_peak_all_is_left_to_chance(step: Step) -> None:
    training = trained(step)
    assert training.coverage == []
    assert set(training.methods) == {TIMER}


@pytest.mark.parametrize("step", [fixed, varying_large, minute, minute_of_micro_batches, flat])
def test_following_stays_within_what_a_window_may_cost(step: Step) -> None:
    training = trained(step, 20)
    settings = AgentSettings()
    assert training.spent / len(training.methods) < settings.interval * settings.budget / 2


def test_steps_are_studied_before_the_first_copy_and_one_before_each_later_one() -> None:
    training = trained(fixed, 1 + STUDIES + 1 + 2)
    assert len(training.coverage) == 2
    assert training.methods[-1] != TIMER


def test_a_source_that_cannot_tell_is_left_to_chance() -> None:
    training = Training([])
    training.level = lambda device: None  # type: ignore[method-assign]
    training.peaks.boundary()
    training.now += 1.0
    training.peaks.boundary()
    assert not training.peaks.begin(0)


def test_a_peak_that_does_not_come_is_given_up_after_some_steps() -> None:
    training = trained(fixed, 20)
    calm = [Event(1e-3, 512, True)] * 8
    tried = []
    for _ in range(STUDIES + TRIES + 1):
        training.steps = [calm]
        training.peaks.boundary()
        tried.append(training.peaks.begin(0))
        training.now += 8e-3
    assert False in tried
    assert training.peaks.method == TIMER


def test_what_was_looked_at_in_vain_is_a_cost_too_and_none_is_counted_twice() -> None:
    """Two steps have ended since the agent's thread last came round, and taught nothing."""
    training, told = trained(fixed, 1), []
    training.peaks._spent = lambda cause, seconds: told.append((cause, seconds))
    ticks = iter(range(100))
    training.peaks._clocks = replace(training.peaks._clocks, cpu=lambda: float(next(ticks)))
    following = SimpleNamespace(curve=lambda: next(ticks) and None)
    training.peaks._ended.extend([peaks.Step(0, following), peaks.Step(0, following)])  # type: ignore[arg-type]
    training.peaks.follow(lambda: True, lambda seconds: None)
    assert told == [("measure", 3.0)]
