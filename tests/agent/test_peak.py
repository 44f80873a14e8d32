"""Where the peak of a step is, as told from earlier steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent.peak import (
    FALL,
    LEVEL,
    PHASE,
    REMEMBERED,
    Curve,
    Experience,
    Point,
    Rehearsal,
    Rule,
    Watch,
    best_rule,
)

levels = st.integers(0, 100)
readings = st.lists(st.tuples(st.integers(0, 3), levels, levels), min_size=1, max_size=30)
rules = st.builds(
    Rule, st.floats(0.01, 0.5), st.floats(0, 60), st.none() | levels.map(float), st.none() | st.integers(0, 50)
)


def curve(*levels: int, pace: int = 1, peak: int | None = None) -> Curve:
    """A reading every `pace` allocations; a copy finds what the next reading finds."""
    soon = (*levels[1:], levels[-1])
    points = (Point(0.01 * i, pace * i, level, after) for i, (level, after) in enumerate(zip(levels, soon)))
    return Curve(tuple(points), peak or max(levels))


def rehearsed(*curves: Curve) -> list[Rehearsal]:
    return [Rehearsal(one) for one in curves]


def taken_at(rule: Rule, *levels: int) -> int | None:
    """The level at which a step with these is copied."""
    watch = Watch(rule, levels[0])
    return next((level for place, level in enumerate(levels) if watch.due(place, level)), None)


@given(readings, rules)
def test_a_rehearsal_ends_as_the_step_itself_would_have(found: list[tuple[int, int, int]], rule: Rule) -> None:
    place, points = 0, []
    for step, active, soon in found:
        place += step
        points.append(Point(0.0, place, active, soon))
    one = Curve(tuple(points), 100)
    watch = Watch(rule, one.base)
    due = next((point for point in points if watch.due(point.allocations, point.active)), points[0])
    assert Rehearsal(one).coverage(rule) == due.soon / 100


@given(st.lists(st.lists(levels, min_size=2, max_size=20), min_size=1, max_size=5))
def test_the_best_rule_is_no_worse_than_the_first_fall(steps: list[list[int]]) -> None:
    curves = rehearsed(*(curve(*step, peak=100) for step in steps))

    def worth(rule: Rule) -> float:
        return sum(one.coverage(rule) for one in curves)

    floor = 0.5 * min(100 - one.curve.base for one in curves)
    assert worth(best_rule(curves)) >= worth(Rule(0.05, floor)) - 1e-9


def test_before_anything_is_known_the_first_clear_fall_is_taken() -> None:
    rule = Experience().rule
    assert rule is not None
    assert rule.method == FALL
    assert taken_at(rule, 10, 50, 100, 99, 90, 10) == 90


def test_a_peak_that_keeps_its_place_is_found_whatever_its_height() -> None:
    experience = Experience()
    for height in (100, 40, 70):
        experience.learn(
            curve(10, 10 + height // 2, 10 + height * 3 // 4, 10 + height, 10 + height, 10 + height // 3, 10)
        )
    assert experience.rule is not None
    assert experience.rule.method == PHASE
    assert taken_at(experience.rule, 10, 150, 250, 300, 301, 90, 10) in (250, 300)


def test_a_spike_is_aimed_at_from_the_reading_before_it() -> None:
    experience = Experience()
    for _ in range(3):
        experience.learn(curve(10, 60, 80, 81, 100, 70, 10))
    assert experience.rule is not None
    assert taken_at(experience.rule, 10, 60, 80, 81, 100, 70, 10) == 81


def test_a_step_that_begins_with_an_evaluation_is_not_copied_in_it() -> None:
    experience = Experience()
    for _ in range(3):
        experience.learn(curve(10, 60, 80, 100, 90, 20))
    assert experience.rule is not None
    evaluation = (10, 14, 11, 14, 11, 14, 11)
    assert taken_at(experience.rule, *evaluation, 60, 80, 101, 90, 20) in (60, 80, 101, 90)


def test_a_peak_that_keeps_its_height_but_no_place_is_found_by_that() -> None:
    rise, fall = (10, 40, 70, 100, 100), (30, 10)
    steps = rehearsed(*(curve(*[10, 12] * idle, *rise, *fall) for idle in (0, 3, 7)))
    rule = best_rule(steps)
    assert rule.method in (LEVEL, FALL)
    assert taken_at(rule, *[10, 12] * 12, *rise, *fall) == 100


def test_steps_without_a_peak_have_no_rule_and_regain_one() -> None:
    experience = Experience()
    for _ in range(REMEMBERED):
        experience.learn(curve(1000, 1001, 1000, 1001))
    assert (experience.rule, experience.zone) == (None, None)
    for _ in range(REMEMBERED):
        experience.learn(curve(10, 60, 100, 90, 20))
    assert experience.rule is not None


def test_what_was_long_ago_is_forgotten() -> None:
    experience = Experience()
    for steps in ((10, 100, 100, 20, 20, 20, 20), (10, 20, 20, 20, 100, 100, 20)):
        for _ in range(REMEMBERED):
            experience.learn(curve(*steps, pace=10))
    assert experience.known == REMEMBERED
    assert experience.rule is not None
    assert taken_at(experience.rule, 10, 20, 20, 20, 100, 100, 20) == 100


def test_a_rule_is_kept_until_another_is_clearly_better() -> None:
    steps = rehearsed(*(curve(10, 600, 995, 1000, 1000, 20) for _ in range(3)))
    present = Rule(0.02, 5.0, place=1)
    assert best_rule(steps, present) == present


@pytest.mark.parametrize("known", [1, 4])
def test_the_zone_spans_the_high_part_and_its_neighbours(known: int) -> None:
    experience = Experience()
    for _ in range(known):
        experience.learn(curve(0, 10, 50, 90, 100, 95, 40, 10, pace=5))
    assert experience.zone is not None
    assert (experience.zone.begin, experience.zone.end) == (10, 30)
    assert experience.zone.seconds == pytest.approx(0.04)


def test_of_many_humps_the_zone_is_the_one_with_the_peak() -> None:
    experience = Experience()
    for _ in range(3):
        experience.learn(curve(0, 50, 94, 94, 0, 50, 100, 100, 0, 50, 94, 94, 0))
    assert experience.zone is not None
    assert 4 <= experience.zone.begin < experience.zone.end <= 8
