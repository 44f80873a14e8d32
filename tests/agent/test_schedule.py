"""When snapshots are due: rarely enough for their cost, and in the same step on all ranks."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent.schedule import Schedule, TokenBucket, next_multiple, spacing
from gpufrag.agent.settings import AgentSettings

DEFAULTS = AgentSettings()
costs = st.floats(0, 10)
times = st.floats(0, 2e9)


def schedule(now: float = 1000.0, chance: float = 0.5) -> Schedule:
    return Schedule(DEFAULTS, now, chance=lambda: chance)


@given(costs, st.booleans())
def test_spacing_keeps_the_cost_within_the_budget(cost: float, history: bool) -> None:
    assert cost <= DEFAULTS.budget * spacing(DEFAULTS, cost, history) * (1 + 1e-9)


@given(costs)
def test_spacing_is_at_least_the_interval(cost: float) -> None:
    assert spacing(DEFAULTS, cost) >= DEFAULTS.interval
    assert spacing(DEFAULTS, cost, history_in_use=True) >= 10 * DEFAULTS.interval
    assert spacing(DEFAULTS, 0.0, history_in_use=True) == 10 * spacing(DEFAULTS, 0.0)


@given(costs, costs)
def test_ranks_of_different_cost_share_windows(one: float, other: float) -> None:
    short, long = sorted((spacing(DEFAULTS, one), spacing(DEFAULTS, other)))
    assert long % short == 0


@given(st.sampled_from([0.05, 1.0, 10.0, 160.0]), times)
def test_next_multiple_is_within_one_period(period: float, now: float) -> None:
    assert now < next_multiple(period, now) <= now + period + 1e-6


def boundaries(step: float, phase: float, until: float, cost: float = 0.0) -> list[float]:
    """When a rank that steps every `step` seconds is sampled."""
    plan, taken, now = schedule(0.0), [], phase
    while now < until:
        if plan.at_step(now):
            taken.append(now)
            plan.taken(now, cost, history_in_use=False)
        now += step
    return taken


def test_each_window_begins_at_its_first_boundary() -> None:
    assert boundaries(step=3.0, phase=1.0, until=45.0) == [1.0, 10.0, 22.0, 31.0, 40.0]


@given(st.floats(0.011, 0.02), st.floats(0.011, 0.02))
def test_ranks_that_step_together_pause_in_the_same_step(one: float, other: float) -> None:
    dear, cheap = boundaries(0.7, 0.3, 200.0, cost=max(one, other) * 2), boundaries(0.7, 0.3, 200.0, cost=one / 2)
    assert set(dear[1:]) <= set(cheap)


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_process_without_steps_is_sampled_at_a_random_phase(phases: list[float]) -> None:
    chances = iter([*phases, 0.0, 0.0])
    plan = Schedule(DEFAULTS, now=1000.0, chance=lambda: next(chances))
    for window, phase in enumerate(phases):
        due = plan.timer(0.0)
        assert due == pytest.approx(1000.0 + 10 * (window + phase))
        assert not plan.at_timer(due - 0.001)
        assert plan.at_timer(due)
        plan.taken(due, 0.0, history_in_use=False)


def test_process_with_steps_has_the_whole_window() -> None:
    plan = schedule(chance=0.0)
    plan.at_step(999.0)
    assert not plan.at_timer(1008.9)
    assert plan.at_timer(1010.0)
    plan.at_step(980.0)
    assert plan.at_timer(1000.0), "the last step is old"


def test_clock_set_back_does_not_stop_snapshots() -> None:
    plan = schedule(chance=0.0)
    plan.taken(1000.0, 0.0, history_in_use=False)
    assert not plan.at_timer(100.0)
    assert plan.at_timer(110.0)


@given(st.floats(0.0, 0.2), st.floats(0.0, 30.0))
def test_hastened_window_waits_until_the_last_is_paid_for(cost: float, after: float) -> None:
    plan = schedule()
    plan.taken(1000.0, cost, history_in_use=False)
    plan.hasten(now := 1000.0 + after)
    paid = 1000.0 + cost / DEFAULTS.budget
    assert plan.at_step(max(now, paid, 1000.0) + 1e-6)
    if paid > now:
        assert not plan.at_step(paid - 1e-3) or paid - 1e-3 >= next_multiple(plan.window, 1000.0)


def test_history_in_use_is_not_hastened() -> None:
    plan = schedule()
    plan.taken(1000.0, 0.001, history_in_use=True)
    plan.hasten(1010.0)
    assert not plan.at_step(1099.0)


def test_random_phases_leave_the_programs_generator_alone() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    schedules = [Schedule(DEFAULTS, now=0.0) for _ in range(20)]
    assert len({plan.timer(0.0) for plan in schedules}) > 1
    assert random.random() == expected


def test_window_length_follows_the_last_cost() -> None:
    plan, dues = schedule(0.0, chance=0.0), []
    for cost in (0.0, 0.015, 0.1, 0.0, 0.0):
        plan.taken(now := plan.timer(1e12), cost, history_in_use=False)
        dues.append(now)
    assert [later - earlier for earlier, later in pairwise(dues)] == [10.0, 10.0, 140.0, 10.0]


def test_token_bucket_has_bounded_burst_and_debt() -> None:
    bucket = TokenBucket(rate=2.0, burst=10.0, now=0.0, max_debt=5.0)
    assert bucket.level(100.0) == 10.0
    bucket.spend(12.0)
    assert bucket.level(100.5) == -1.0
    bucket.spend(100.0)
    assert bucket.level(100.5) == -5.0
    assert bucket.level(90.0) == -5.0, "a clock that goes back gives nothing"
