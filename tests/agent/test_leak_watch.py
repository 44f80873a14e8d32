"""Growing memory is found at step boundaries, within its budget, and logged once."""

from __future__ import annotations

import logging

import pytest

from agent.watched_job import MB, Job, job
from fake_source import HandClock, ScriptedSource
from gpufrag.agent.leak_watch import BURST, SHARE
from gpufrag.agent.sampler import Sampler
from gpufrag.agent.settings import AgentSettings
from gpufrag.model.leaks import FEWEST, LASTING
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import Leak


def test_leak_is_found_within_sixty_steps(clock: HandClock) -> None:
    training = job(clock)
    training.steps(60, kept=2 * MB)
    leak = training.leak()
    assert leak is not None
    assert (leak.unit, round(leak.rate)) == ("step", 2 * MB)


def test_agent_is_woken_when_enough_points_exist(clock: HandClock) -> None:
    training = job(clock)
    training.steps(FEWEST + 1, kept=2 * MB)
    assert training.source.lives - 1 == FEWEST + 1, "one point a step, and one second before the first"
    assert training.woken[-1] == FEWEST + 1
    assert training.sampler.read_in() <= 0


def test_flat_memory_is_no_leak_and_few_points_are_unknown(clock: HandClock) -> None:
    training = job(clock)
    training.steps(FEWEST - 1)
    assert training.leak() is None
    training.steps(10)
    assert training.leak() == Leak("step")


def test_growth_below_the_threshold_is_no_leak(clock: HandClock) -> None:
    training = job(clock, threshold=3 * MB)
    training.steps(100, kept=2 * MB)
    assert training.leak() == Leak("step")


@pytest.mark.parametrize("length", [0.001, 0.02, 0.1])
def test_points_stay_within_their_budget(clock: HandClock, length: float) -> None:
    training = job(clock)
    lived = training.source.lives
    began = clock.now
    training.steps(int(60 / length), length=length)
    spent = (training.source.lives - lived) * training.source.cost
    assert spent <= BURST + SHARE * (clock.now - began) + training.source.cost
    assert spent > 0.5 * min(SHARE * 60, training.source.cost * 60 / length)


def test_short_steps_get_points_at_some_of_them(clock: HandClock) -> None:
    training = job(clock)
    training.steps(3000, kept=2 * MB, length=0.005)
    leak = training.leak()
    assert leak is not None
    assert round(leak.rate) == 2 * MB


def test_reading_that_waited_is_paid_for(clock: HandClock) -> None:
    training = job(clock, cost=0.02)
    training.steps(1)
    lived = training.source.lives
    training.steps(95)
    assert training.source.lives == lived, "it is paid for by ten seconds"
    training.steps(10)
    assert training.source.lives == lived + 1


def test_source_without_live_memory_has_no_points(source: ScriptedSource, clock: HandClock) -> None:
    sampler = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
    training = Job(source, sampler, clock)  # type: ignore[arg-type]
    sampler.watch_steps(lambda: None)
    sampler.read()
    training.steps(200)
    assert training.leak() is None


def _serve(serving: Job, seconds: float, kept: int) -> None:
    for _ in range(int(seconds)):
        serving.clock.tick(1.0)
        serving.source.keep(kept)
        serving.leak()


@pytest.mark.parametrize("blocks", [500, None])
def test_server_is_judged_by_seconds(clock: HandClock, blocks: int | None) -> None:
    serving = job(clock, steps=False, blocks=blocks)
    _serve(serving, LASTING / 2, kept=MB)
    assert serving.leak() is None
    _serve(serving, LASTING * 2 / 3, kept=MB)
    leak = serving.leak()
    assert leak is not None
    assert (leak.unit, round(leak.rate, -3)) == ("second", MB)


@pytest.mark.parametrize("blocks", [500, None])
def test_growing_server_is_never_called_clear(clock: HandClock, blocks: int | None) -> None:
    serving = job(clock, steps=False, blocks=blocks)
    for _ in range(int(2 * LASTING)):
        _serve(serving, 1, kept=MB)
        leak = serving.leak()
        assert leak is None or leak.rate > 0


def test_training_that_begins_later_is_judged_by_steps(clock: HandClock) -> None:
    loading = job(clock)
    _serve(loading, LASTING * 7 / 6, kept=MB)
    loading.steps(FEWEST + 1)
    assert loading.leak() == Leak("step")


def test_leak_is_logged_once(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    training = job(clock)
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for _ in range(5):
            training.steps(60, kept=2 * MB)
            training.leak()
    (line,) = caplog.messages
    assert line.startswith("gpufrag: device 0: allocated memory grows by 1.91 MiB per step")
    assert "docs/leaks.md" in line


def test_growth_that_ended_is_withdrawn_once(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    filling = job(clock)
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for count, kept in ((60, 2 * MB), (40, 0), (200, 0), (200, 0)):
            filling.steps(count, kept=kept, length=0.2)
            filling.leak()
    assert [line.split(": ")[2][:30] for line in caplog.messages] == [
        "allocated memory grows by 1.91",
        "allocated memory has not grown",
    ]
    assert filling.leak() == Leak("step")


def test_new_leak_after_a_withdrawn_one_is_logged(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    training = job(clock)
    with caplog.at_level(logging.WARNING, "gpufrag"):
        for count, kept in ((60, 2 * MB), (400, 0), *[(300, 2 * MB)] * 5):
            for _ in range(count // 20):
                training.steps(20, kept=kept, length=0.5)
                training.leak()
    assert [line.split(": ")[2][:22] for line in caplog.messages] == [
        "allocated memory grows",
        "allocated memory has n",
        "allocated memory grows",
    ]


def test_leak_is_not_withdrawn_too_early(clock: HandClock) -> None:
    """Other memory hides a leak for some readings."""
    training, rates = job(clock), []
    training.steps(60, kept=2 * MB)
    training.leak()
    for _ in range(FEWEST + 20):
        training.steps(1, kept=0)
        leak = training.leak()
        assert leak is not None
        rates.append(leak.rate > 0)
    assert rates.index(False) >= FEWEST - 1
    assert not any(rates[rates.index(False) :])


def test_failed_point_is_paid_for(clock: HandClock) -> None:
    training = job(clock, cost=0.02)
    watch, tried = training.sampler._leaks, []
    assert watch is not None

    def fail(device: int) -> None:
        tried.append(clock.tick(0.02))
        raise RuntimeError("gone")

    training.source.live = fail  # type: ignore[method-assign]
    training.steps(95)
    assert len(tried) == 1
    assert training.sampler._stalls["stats"] == pytest.approx(0.02)
