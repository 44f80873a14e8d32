"""Endless growth, and series that only resemble it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.leaks import FEWEST, MOST, Growth, Point, Series, _is_new, _lasted, _lengths, _rank_below, _steady

MB = 1_000_000
GB = 1_000 * MB
Curve = Callable[[int, random.Random], tuple[float, int]]
"""Bytes and blocks after a step."""


def growths(
    curve: Curve, steps: int, *, seed: int = 1, read: Callable[[int], bool] = lambda step: True
) -> Iterator[tuple[int, Growth]]:
    """Yield each step with growth; checked after every sample, as the agent does."""
    series, chance = Series(), random.Random(seed)
    for step in filter(read, range(steps)):
        allocated, blocks = curve(step, chance)
        series.add(Point(step, int(allocated), blocks))
        if found := series.growth(MB):
            yield step, found


def series_of(rows: Iterable[tuple[int, float, int]]) -> Series:
    """From steps, bytes and blocks."""
    series = Series()
    for step, allocated, blocks in rows:
        series.add(Point(step, int(allocated), blocks))
    return series


def line(amounts: Iterable[int]) -> Series:
    """One amount a step, as bytes and as blocks."""
    return series_of((step, amount, amount) for step, amount in enumerate(amounts))


def noisy(step: int, chance: random.Random) -> float:
    """Return a step's memory with a batch of varying length."""
    return 5 * GB + chance.uniform(0, 20 * MB)


class Shape(NamedTuple):
    """Memory on top of the noise: `times` of a step, by `bytes_` and `blocks`."""

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
    "with evaluation every 20 steps": both(KEPT, EVALUATION),
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
def test_leak_of_2_mb_is_found_within_60_steps(what: str, seed: int) -> None:
    _, found = next(growths(LEAKS[what], 60, seed=seed))
    assert found.low <= 2 * MB * 1.2
    assert found.rate == pytest.approx(2 * MB, rel=0.5)


@pytest.mark.parametrize("what", HEALTHY)
@pytest.mark.parametrize("seed", range(3))
def test_healthy_series_is_no_leak(what: str, seed: int) -> None:
    assert list(growths(HEALTHY[what], 1_200, seed=seed)) == []


def rarer_after(first: int, every: int) -> Callable[[int], bool]:
    """Sample all of the first steps, then one of `every`."""
    return lambda step: step < first or step % every == 0


@pytest.mark.parametrize("first", [50, 80, 110, 200])
@pytest.mark.parametrize("every", [2, 5, 8, 12])
@pytest.mark.parametrize("until", [100, 150, 300])
def test_growth_that_ended_is_no_leak(first: int, every: int, until: int) -> None:
    """Sequences grow for `until` steps, which may have most samples but not most steps."""
    growing = Shape(lambda step: min(step, until), 2 * MB, 0)
    assert list(growths(growing, 1_600, read=rarer_after(first, every))) == []


@pytest.mark.parametrize("what", HEALTHY)
@pytest.mark.parametrize(("first", "every"), [(60, 40), (80, 20), (110, 8)])
def test_healthy_series_sampled_unevenly_is_no_leak(what: str, first: int, every: int) -> None:
    assert list(growths(HEALTHY[what], 2_000, read=rarer_after(first, every))) == []


@pytest.mark.parametrize("first", [50, 110, 200])
@pytest.mark.parametrize("every", [2, 5, 8, 12])
def test_leak_sampled_unevenly_stays_a_leak(first: int, every: int) -> None:
    read = rarer_after(first, every)
    assert [step for step, _ in growths(KEPT, 1_600, read=read)] == [*filter(read, range(47, 1_600))]


@pytest.mark.parametrize("period", [64, 100, 230])
def test_sawtooth_is_no_leak_after_two_rounds(period: int) -> None:
    """Cyclic garbage, for example."""
    sawtooth = Shape(lambda step: step % period, 5 * MB, 1)
    assert all(step < 2.2 * period for step, _ in growths(sawtooth, 8 * period))


def test_leak_in_a_smaller_phase_is_found_later() -> None:
    phase, late = Shape(lambda step: step < 200, 8 * GB, 500), Shape(lambda step: max(0, step - 200), 2 * MB, 1)
    assert next(growths(both(phase, late), 450))[0] > 200


def test_single_peak_does_not_count_as_held() -> None:
    """Also at the end of the earlier points, where a group is incomplete."""
    window = [Point(step, 2 * MB * step, step) for step in range(300, 360)]
    for before in range(190, 200):
        earlier = [Point(step, 9 * GB if step == before - 1 else 0, 0) for step in range(before)]
        assert _is_new(window, earlier)


def test_earlier_height_counts_by_steps() -> None:
    earlier = [Point(step, 9 * GB, 0) for step in range(0, 2_000, 50)]
    window = [Point(2_000 + step, 2 * MB * step, step) for step in range(60)]
    assert len(earlier) < len(window)
    assert not _is_new(window, earlier)


@pytest.mark.parametrize(("span", "new"), [(105, True), (106, False)])
def test_earlier_height_counts_only_if_held_longer(span: int, new: bool) -> None:
    """The window spans 100 steps; 5 % is the tolerance."""
    window = [Point(200 + step, 2 * MB * step, step) for step in range(101)]
    assert _is_new(window, [Point(step, 9 * GB, 0) for step in range(span + 1)]) is new


def test_leak_with_sawtooth_is_found() -> None:
    leak = both(KEPT, Shape(lambda step: step % 100, 5 * MB, 1))
    assert [*growths(leak, 1_500)][-1][0] == 1_499


@pytest.mark.parametrize("begin", [200, 500])
def test_late_leak_is_found_as_soon(begin: int) -> None:
    late = Shape(lambda step: max(0, step - begin), 2 * MB, 1)
    assert next(growths(late, begin + 60))[0] > begin


def test_late_leak_in_long_job_is_found_after_a_tenth() -> None:
    chance, begin = random.Random(1), 10_000
    late = Shape(lambda step: max(0, step - begin), 2 * MB, 1)
    found = series_of((step, *late(step, chance)) for step in range(int(begin * 1.1))).growth(MB)
    assert found
    assert found.begin == pytest.approx(begin, rel=0.02)


def test_growing_tensor_is_found_later() -> None:
    step, found = next(growths(Shape(lambda step: step, 2 * MB, 0), 600))
    assert step >= 400
    assert found.low < 2 * MB < found.high


def test_long_run_narrows_the_interval() -> None:
    chance = random.Random(3)
    found = series_of((step, *KEPT(step, chance)) for step in range(20_000)).growth(MB)
    assert found
    assert found.high - found.low < 0.01 * found.rate
    assert found.end - found.begin > 10_000


@pytest.mark.parametrize(("count", "decided"), [(FEWEST - 1, False), (FEWEST, True)])
def test_fewest_points_decide(count: int, decided: bool) -> None:
    series = line(2 * MB * step for step in range(count))
    assert series.decided is decided
    assert (series.growth(MB) is not None) is decided


def test_growth_must_exceed_the_threshold() -> None:
    """A straight line has one slope, so the interval is that slope."""
    series = line(MB * step for step in range(100))
    assert series.growth(MB) is None
    found = series.growth(MB - 1)
    assert found
    assert (found.low, found.rate, found.high) == (MB, MB, MB)


def plateau(rising: int, flat: int) -> Iterator[int]:
    """2 MB a step, which ends before the last `flat` steps."""
    return (2 * MB * min(step, rising) for step in range(rising + flat))


@pytest.mark.parametrize(
    ("amounts", "blocks", "leak"),
    [
        (plateau(436, 0), 0, False),  # the lowest points of the first and last bucket are 399 steps apart
        (plateau(437, 0), 0, True),
        (plateau(444, 36), 1, True),
        (plateau(360, 120), 1, False),
    ],
    ids=["bytes for 399 steps", "bytes for 400 steps", "blocks, until the last buckets", "blocks, ended before"],
)
def test_growth_must_last(amounts: Iterable[int], blocks: int, leak: bool) -> None:
    series = series_of((step, amount, 7 + blocks * amount) for step, amount in enumerate(amounts))
    assert (series.growth(MB) is not None) is leak


def test_growth_has_the_span_of_the_rise() -> None:
    kept = [min(max(step - 60, 0), 400) for step in range(480)]
    found = series_of((step, 5 * MB * count, count) for step, count in enumerate(kept)).growth(MB)
    assert found
    assert found.begin == pytest.approx(60, abs=2)
    assert found.end == pytest.approx(460, abs=25)


def test_series_has_span_end_and_count() -> None:
    empty, series = Series(), series_of((step, 1, 1) for step in range(10, 30))
    assert (empty.end, empty.span, empty.added) == (0, 0, 0)
    assert (series.end, series.span, series.added) == (29, 19, 20)


@pytest.mark.parametrize("again", [[*range(10)], [*range(10), *range(50), 49]])
def test_reset_step_counter_starts_a_new_series(again: list[int]) -> None:
    series = series_of((step, MB * step, step) for step in [*range(50), *again])
    assert (series.decided, series.end) == (False, again[-1])


def test_height_of_the_last_group_counts_as_held() -> None:
    earlier = [Point(step, 9 * GB if step >= 196 else 0, 0) for step in range(200)]
    window = [Point(step, 2 * MB * step, step) for step in range(300, 360)]
    assert not _is_new(window, earlier)
    assert _is_new(window, earlier[:199])


def test_interval_has_sens_rank() -> None:
    """Kendall's statistic of 12 points has the standard deviation 14.6."""
    assert _rank_below(12, 66) == 14
    assert _rank_below(4, 6) == 0


@pytest.mark.parametrize(("others", "steady"), [([23, 24, 24], True), ([24, 24, 24], False)])
def test_rising_buckets_must_have_most_steps(others: list[float], steady: bool) -> None:
    """8 of 11 buckets rise, for 20 steps each: the tolerance allows 71 steps in the others."""
    assert _steady([True] * 7 + [False] * 3 + [True], [20] * 7 + others + [20]) is steady


def test_bucket_lengths_are_the_steps_between_middles() -> None:
    """Samples of the later half are ten steps apart, so its buckets are ten times as long."""
    steps = [*range(48), *range(48, 528, 10)]
    assert _lengths([(step, 0) for step in steps]) == [8] * 5 + [44] + [80] * 5


@given(st.lists(st.integers(0, 1 << 40), max_size=300))
def test_falling_series_never_grows(amounts: list[int]) -> None:
    assert line(sorted(amounts, reverse=True)).growth(0) is None


@given(st.lists(st.integers(0, 1 << 40), min_size=48, max_size=300), st.integers(1, 1 << 50))
def test_interval_contains_the_rate_with_any_offset(amounts: list[int], offset: int) -> None:
    found, shifted = line(amounts).growth(0), line(a + offset for a in amounts).growth(0)
    assert (found is None) == (shifted is None)
    if found:
        assert 0 < found.low <= found.rate <= found.high


@pytest.mark.parametrize(
    ("added", "kept"),
    [(MOST, MOST), (MOST + 1, MOST // 2 + 1), (MOST + 3, MOST // 2 + 2), (3 * MOST + 7, 3 * MOST // 4 + 2)],
)
def test_every_second_point_is_dropped_above_the_bound(added: int, kept: int) -> None:
    assert len(line(range(added))._points) == kept


@pytest.mark.parametrize(("others", "steady"), [(0.001, True), (0.1, False)])
def test_rise_must_last_most_of_the_time(others: float, steady: bool) -> None:
    rises = [False, False, *[True] * 9]
    assert _steady(rises, [others if not rise else 0.001 for rise in rises]) is steady


@pytest.mark.parametrize(("held", "new"), [(66, True), (67, False)])
def test_share_of_the_rise_above_earlier_height_is_exact(held: int, new: bool) -> None:
    """The window rises by 110: 40 % of that is 44."""
    window = [Point(100 + step, step // 4 * 10, 0) for step in range(48)]
    assert _is_new(window, [Point(step, held, 0) for step in range(60)]) is new


@pytest.mark.parametrize(("high", "steps"), [(100, 10), (5, 5)])
def test_rise_lasts_no_longer_than_its_bucket(high: int, steps: float) -> None:
    assert _lasted(((10, 0), (20, high)), 1.0) == steps
