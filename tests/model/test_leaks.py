"""Growth for ever, told from all that only looks like it for a while."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.leaks import MOST, Growth, Point, Series, _is_new

MB = 1_000_000
GB = 1_000 * MB
Curve = Callable[[int, random.Random], tuple[float, int]]
"""Bytes and blocks after a step."""


def first_finding(curve: Curve, steps: int, seed: int = 1, threshold: float = MB) -> tuple[int, Growth] | None:
    """Asked after every step, as the agent does."""
    series, chance = Series(), random.Random(seed)
    for step in range(steps):
        allocated, blocks = curve(step, chance)
        series.add(Point(step, int(allocated), blocks))
        if found := series.growth(threshold):
            return step, found
    return None


def noisy(step: int, chance: random.Random) -> float:
    """A batch of varying length is still there at the end of a step."""
    return 5 * GB + chance.uniform(0, 20 * MB)


class Shape(NamedTuple):
    """What stands above the noise: so many times `bytes_`, each in `blocks` blocks, after a step."""

    times: Callable[[int], float]
    bytes_: float
    blocks: float

    def __call__(self, step: int, chance: random.Random) -> tuple[float, int]:
        return noisy(step, chance) + self.times(step) * self.bytes_, 600 + int(self.times(step) * self.blocks)


def both(*shapes: Shape) -> Curve:
    def curve(step: int, chance: random.Random) -> tuple[float, int]:
        parts = [shape.times(step) for shape in shapes]
        amount = sum(n * shape.bytes_ for n, shape in zip(parts, shapes))
        return noisy(step, chance) + amount, 600 + int(sum(n * shape.blocks for n, shape in zip(parts, shapes)))

    return curve


KEPT = Shape(lambda step: step, 2 * MB, 1)
EVALUATION = Shape(lambda step: step % 20 < 3, GB, 50)
LEAKS: dict[str, Curve] = {
    "a loss with its graph kept each step": KEPT,
    "three tensors every second step": Shape(lambda step: step // 2, 4 * MB, 3),
    "beside evaluation every 20 steps": both(KEPT, EVALUATION),
    "after a warm-up": both(KEPT, Shape(lambda step: min(step, 5), GB, 40)),
}
HEALTHY: dict[str, Curve] = {
    "nothing but noise": Shape(lambda step: 0, GB, 1),
    "evaluation every 20 steps": EVALUATION,
    "optimizer state made at the second step": Shape(lambda step: step > 1, 10 * GB, 300),
    "a compiled model warms up": Shape(lambda step: min(step, 25), 50 * MB, 7),
    "sequences that grow for 100 steps": Shape(lambda step: min(step, 100), 3 * MB, 0),
    "a second model begins late": Shape(lambda step: step > 300, 3 * GB, 200),
    "layers thawed every 200 steps, four times": Shape(lambda step: min(step // 200, 4), GB, 40),
    "checkpoints every 100 steps": Shape(lambda step: step % 100 == 0, 4 * GB, 300),
    "a cache that fills and is emptied": Shape(lambda step: step % 40, 5 * MB, 1),
    "growth below the threshold": Shape(lambda step: step, MB / 4, 1),
}


@pytest.mark.parametrize("what", LEAKS)
@pytest.mark.parametrize("seed", range(3))
def test_two_megabytes_a_step_are_found_within_60_steps(what: str, seed: int) -> None:
    found = first_finding(LEAKS[what], 60, seed)
    assert found
    assert found[1].low <= 2 * MB * 1.2
    assert found[1].rate == pytest.approx(2 * MB, rel=0.5)


@pytest.mark.parametrize("what", HEALTHY)
@pytest.mark.parametrize("seed", range(3))
def test_what_does_not_grow_for_ever_is_no_leak(what: str, seed: int) -> None:
    assert first_finding(HEALTHY[what], 1_200, seed) is None


def findings(curve: Curve, steps: int, read: Callable[[int], bool] = lambda step: True) -> list[int]:
    """The steps after which it says that memory grows."""
    series, chance, found = Series(), random.Random(1), []
    for step in filter(read, range(steps)):
        allocated, blocks = curve(step, chance)
        series.add(Point(step, int(allocated), blocks))
        if series.growth(MB):
            found.append(step)
    return found


def rarer_after(first: int, every: int) -> Callable[[int], bool]:
    """Which steps are read: the first ones all, as far as the agent's credit goes."""
    return lambda step: step < first or step % every == 0


@pytest.mark.parametrize("first", [50, 80, 110, 200])
@pytest.mark.parametrize("every", [2, 5, 8, 12])
@pytest.mark.parametrize("until", [100, 150, 300])
def test_growth_that_ended_is_none_where_it_was_read_more_often(first: int, every: int, until: int) -> None:
    """Longer sequences for `until` steps: most readings may lie in these, though most steps do not."""
    growing = Shape(lambda step: min(step, until), 2 * MB, 0)
    assert not findings(growing, 1_600, rarer_after(first, every))


@pytest.mark.parametrize("what", HEALTHY)
@pytest.mark.parametrize(("first", "every"), [(60, 40), (80, 20), (110, 8)])
def test_what_does_not_grow_for_ever_is_no_leak_either_where_later_steps_are_read_more_rarely(
    what: str, first: int, every: int
) -> None:
    assert not findings(HEALTHY[what], 2_000, rarer_after(first, every))


@pytest.mark.parametrize("first", [50, 110, 200])
@pytest.mark.parametrize("every", [2, 5, 8, 12])
def test_a_leak_is_never_taken_back_where_later_steps_are_read_more_rarely(first: int, every: int) -> None:
    found = findings(KEPT, 1_600, rarer_after(first, every))
    assert found[0] == 47
    assert len(found) == len([*filter(rarer_after(first, every), range(47, 1_600))])


@pytest.mark.parametrize("period", [64, 100, 230])
def test_what_fills_and_is_emptied_again_and_again_is_believed_in_its_first_two_rounds_at_most(period: int) -> None:
    """As garbage in cycles does, which Python collects every so many steps."""
    found = findings(Shape(lambda step: step % period, 5 * MB, 1), 8 * period)
    assert all(step < 2.2 * period for step in found)


def test_a_leak_in_a_phase_that_needs_less_is_found_once_it_has_lasted_longer_than_what_was_before() -> None:
    phase, late = Shape(lambda step: step < 200, 8 * GB, 500), Shape(lambda step: max(0, step - 200), 2 * MB, 1)
    assert 200 < findings(both(phase, late), 450)[0] < 450


def test_a_peak_that_was_cut_off_is_not_held_before() -> None:
    """However many readings there were earlier: a group of fewer than those that count is none."""
    window = [Point(step, 2 * MB * step, step) for step in range(300, 360)]
    for before in range(190, 200):
        earlier = [Point(step, 9 * GB if step == before - 1 else 0, 0) for step in range(before)]
        assert _is_new(window, earlier)


def test_what_was_held_earlier_counts_by_steps_however_rarely_it_was_read() -> None:
    earlier = [Point(step, 9 * GB, 0) for step in range(0, 2_000, 50)]
    window = [Point(2_000 + step, 2 * MB * step, step) for step in range(60)]
    assert len(earlier) < len(window)
    assert not _is_new(window, earlier)


def test_a_leak_beside_it_is_found() -> None:
    assert findings(both(KEPT, Shape(lambda step: step % 100, 5 * MB, 1)), 1_500)[-1] == 1_499


@pytest.mark.parametrize("begin", [200, 500])
def test_a_leak_that_begins_late_is_found_as_soon(begin: int) -> None:
    late = Shape(lambda step: max(0, step - begin), 2 * MB, 1)
    assert begin < findings(late, begin + 60)[0] < begin + 60


def test_a_leak_that_begins_late_in_a_long_job_is_found_after_a_tenth_of_it() -> None:
    series, chance, begin = Series(), random.Random(1), 10_000
    for step in range(int(begin * 1.1)):
        kept = max(0, step - begin)
        series.add(Point(step, int(noisy(step, chance) + 2 * MB * kept), 600 + kept))
    found = series.growth(MB)
    assert found
    assert found.begin == pytest.approx(begin, rel=0.02)


def test_one_tensor_that_grows_for_ever_is_found_later() -> None:
    found = first_finding(lambda step, chance: (noisy(step, chance) + 2 * MB * step, 600), 600)
    assert found
    assert found[0] >= 400
    assert found[1].low < 2 * MB < found[1].high


def test_a_long_run_narrows_the_interval() -> None:
    series, chance = Series(), random.Random(3)
    curve = LEAKS["a loss with its graph kept each step"]
    for step in range(20_000):
        allocated, blocks = curve(step, chance)
        series.add(Point(step, int(allocated), blocks))
    found = series.growth(MB)
    assert found
    assert found.high - found.low < 0.01 * found.rate
    assert found.end - found.begin > 10_000


def test_too_little_decides_nothing() -> None:
    series = Series()
    for step in range(20):
        series.add(Point(step, 10 * MB * step, step))
    assert not series.decided
    assert series.growth(MB) is None


def test_a_count_that_begins_anew_begins_a_new_series() -> None:
    series = Series()
    for step in [*range(50), *range(10)]:
        series.add(Point(step, MB * step, step))
    assert not series.decided


def points(amounts: Iterable[int]) -> Series:
    series = Series()
    for step, amount in enumerate(amounts):
        series.add(Point(step, amount, amount))
    return series


@given(st.lists(st.integers(0, 1 << 40), max_size=300))
def test_what_ends_no_higher_than_it_began_never_grows(amounts: list[int]) -> None:
    """Whatever lies between: falling series, spikes, plateaus."""
    assert points(sorted(amounts, reverse=True)).growth(0) is None


@given(st.lists(st.integers(0, 1 << 40), min_size=48, max_size=300), st.integers(1, 1 << 50))
def test_the_interval_holds_the_rate_and_an_offset_changes_nothing(amounts: list[int], offset: int) -> None:
    found, shifted = points(amounts).growth(0), points(a + offset for a in amounts).growth(0)
    assert (found is None) == (shifted is None)
    if found:
        assert 0 < found.low <= found.rate <= found.high


def test_memory_is_bounded() -> None:
    series = points(range(3 * MOST + 7))
    assert len(series._points) <= MOST
