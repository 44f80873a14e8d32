"""When snapshots are due: rarely enough for what they cost, and in one step on all ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent.schedule import Schedule, next_multiple, spacing
from gpufrag.agent.settings import AgentSettings

DEFAULTS = AgentSettings()
costs = st.floats(0, 10)
times = st.floats(0, 2e9)


@given(costs, st.booleans())
def test_a_snapshot_never_takes_more_than_its_share_of_time(cost: float, recording: bool) -> None:
    assert cost <= DEFAULTS.budget * spacing(DEFAULTS, cost, recording) * (1 + 1e-9)


@given(costs)
def test_snapshots_are_at_least_an_interval_apart_on_average(cost: float) -> None:
    assert spacing(DEFAULTS, cost) >= DEFAULTS.interval


@given(costs)
def test_while_history_is_recorded_they_are_at_least_ten_times_rarer_than_the_interval(cost: float) -> None:
    assert spacing(DEFAULTS, cost, recording=True) >= 10 * DEFAULTS.interval
    assert spacing(DEFAULTS, 0.0, recording=True) == 10 * spacing(DEFAULTS, 0.0)


@given(costs, costs)
def test_ranks_of_different_cost_meet_at_every_multiple_of_the_longer_spacing(one: float, other: float) -> None:
    short, long = sorted((spacing(DEFAULTS, one), spacing(DEFAULTS, other)))
    assert long % short == 0


@given(st.sampled_from([0.05, 1.0, 10.0, 160.0]), times)
def test_the_next_multiple_lies_ahead_and_within_one_period(period: float, now: float) -> None:
    assert now < next_multiple(period, now) <= now + period + 1e-6


def _boundaries(step: float, phase: float, until: float, cost: float = 0.0) -> list[float]:
    """When a rank that steps every `step` seconds is sampled."""
    schedule = Schedule(DEFAULTS, now=0.0, chance=lambda: 0.5)
    taken = []
    now = phase
    while now < until:
        if schedule.at_step(now):
            taken.append(now)
            schedule.taken(now, cost, recording=False)
        now += step
    return taken


def test_each_window_has_one_snapshot_at_its_first_boundary() -> None:
    assert _boundaries(step=3.0, phase=1.0, until=45.0) == [1.0, 10.0, 22.0, 31.0, 40.0]


@given(st.floats(0.011, 0.02), st.floats(0.011, 0.02))
def test_ranks_that_step_together_pause_in_the_same_step_whatever_it_costs_each(one: float, other: float) -> None:
    dear, cheap = _boundaries(0.7, 0.3, 200.0, cost=max(one, other) * 2), _boundaries(0.7, 0.3, 200.0, cost=one / 2)
    assert set(dear[1:]) <= set(cheap)


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_a_process_that_does_not_step_is_sampled_once_a_window_at_a_random_phase(phases: list[float]) -> None:
    chances = iter([*phases, 0.0, 0.0])
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: next(chances))
    for window, phase in enumerate(phases):
        due = schedule.timer(0.0)
        assert due == pytest.approx(1000.0 + 10 * (window + phase))
        assert not schedule.at_timer(due - 0.001)
        assert schedule.at_timer(due)
        schedule.taken(due, 0.0, recording=False)


def test_a_process_that_steps_is_given_the_whole_window_to_reach_a_boundary() -> None:
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: 0.0)
    schedule.at_step(999.0)
    assert not schedule.at_timer(1008.9)
    assert schedule.at_timer(1010.0)


def test_one_whose_last_step_is_long_past_goes_by_the_timer_again() -> None:
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: 0.0)
    schedule.at_step(980.0)
    assert schedule.at_timer(1000.0)


def test_a_clock_that_is_set_back_does_not_stop_the_snapshots() -> None:
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: 0.0)
    schedule.taken(1000.0, 0.0, recording=False)
    assert not schedule.at_timer(100.0)
    assert schedule.at_timer(110.0)


def test_what_is_left_to_chance_comes_at_a_random_phase_whatever_steps() -> None:
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: 0.4)
    schedule.leave_to_chance(1002.0)
    assert not schedule.at_step(1003.0)
    assert not schedule.at_timer(1005.9)
    assert schedule.at_timer(1006.0)
    schedule.taken(1006.0, 0.0, recording=False)
    assert schedule.at_step(1010.0)


@given(st.floats(0.0, 0.2), st.floats(0.0, 30.0))
def test_a_hastened_snapshot_comes_at_once_or_when_the_last_one_is_paid_for(cost: float, after: float) -> None:
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: 0.5)
    schedule.taken(1000.0, cost, recording=False)
    schedule.hasten(now := 1000.0 + after)
    paid = 1000.0 + cost / DEFAULTS.budget
    assert schedule.at_step(max(now, paid, 1000.0) + 1e-6)
    if paid > now:
        assert not schedule.at_step(paid - 1e-3) or paid - 1e-3 >= next_multiple(schedule.window, 1000.0)


def test_while_history_is_recorded_nothing_is_hastened() -> None:
    schedule = Schedule(DEFAULTS, now=1000.0, chance=lambda: 0.5)
    schedule.taken(1000.0, 0.001, recording=True)
    schedule.hasten(1010.0)
    assert not schedule.at_step(1099.0)


def test_random_phases_differ_and_leave_the_programs_own_generator_alone() -> None:
    import random

    random.seed(7)
    expected = random.random()
    random.seed(7)
    schedules = [Schedule(DEFAULTS, now=0.0) for _ in range(20)]
    assert len({schedule.timer(0.0) for schedule in schedules}) > 1
    assert random.random() == expected


def test_successive_costs_are_each_answered() -> None:
    schedule = Schedule(DEFAULTS, now=0.0, chance=lambda: 0.0)
    dues = []
    for cost in (0.0, 0.015, 0.1, 0.0, 0.0):
        schedule.taken(now := schedule.timer(1e12), cost, recording=False)
        dues.append(now)
    assert [later - earlier for earlier, later in pairwise(dues)] == [10.0, 10.0, 140.0, 10.0]
