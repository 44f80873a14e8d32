"""Whether allocated memory grows from step to step without end, as opposed to warm-up, noise or a new phase.

A window of the series is cut into BUCKETS of equal size, and the lowest point of each makes its lower envelope: peaks
of a few steps (evaluation, a checkpoint, a long sequence) do not count. The slope is the median of all pairwise slopes
of the envelope (Theil-Sen), with Sen's interval from Kendall's statistic. It is growth if the interval lies above a
threshold and most buckets, by number and by steps, the last ones included, rise above the previous one: memory taken
once or a few times (optimizer state, averaged weights, a compiled graph) also has a slope, but in steps, or one that
ends.

A kept tensor adds a block each time, while longer sequences enlarge the same blocks. So growth in the number of blocks
is reported after some fifty points; growth in bytes alone must last LASTING steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

BUCKETS = 12
FEWEST = 4 * BUCKETS
"""Fewest points of a window; with fewer the lowest points are no envelope."""
LASTING = 400.0
"""Steps (or seconds) for which bytes must grow if the number of blocks does not."""
MOST = 16 * FEWEST
"""Points kept; above it every second one is dropped, so the window grows at constant cost."""
SURE = 2.576
"""Standard deviations of Kendall's statistic for a 99 % interval."""
SHARE = 0.4
"""Share of the overall slope above which a bucket counts as rising."""
STEADY = 8
"""Buckets, of BUCKETS - 1, that must rise."""
NEARLY = 1.05
"""Tolerance for durations: buckets differ by a point."""
HELD = 4
"""Points in a row for which memory must be held to count; fewer are a peak."""


class Point(NamedTuple):
    """At `at` (a step's number, or seconds) `allocated` bytes in `blocks` live allocations."""

    at: float
    allocated: int
    blocks: int


@dataclass(frozen=True)
class Growth:
    """Bytes per step (or second) with their 99 % interval, and the first and last step of the rise."""

    rate: float
    low: float
    high: float
    begin: float
    end: float


class Series:
    """Points in order; drops every second one when there are too many."""

    def __init__(self) -> None:
        self.added = 0
        """Number of points, dropped ones included."""
        self._points: list[Point] = []
        self._every = 1
        self._passed = 0

    def add(self, point: Point) -> None:
        """Start a new series if `at` is not above the last one: the step counter was reset."""
        self.added += 1
        if self._points and point.at <= self._points[-1].at:
            self._points, self._every = [], 1
        self._passed = (self._passed + 1) % self._every
        if self._passed:
            return
        self._points.append(point)
        if len(self._points) > MOST:
            self._points = self._points[::2]
            self._every *= 2

    def growth(self, threshold: float) -> Growth | None:
        """Return growth above `threshold` bytes per step; None if there is none, or too few points.

        Reports the longest growing window, which has the narrowest interval. A short one counts only if it leads above
        what was held before.
        """
        windows = ((earlier, growth(window, threshold), window) for earlier, window in self._windows())
        return next((found for earlier, found, window in windows if found and _is_new(window, earlier)), None)

    @property
    def decided(self) -> bool:
        """Whether there are enough points to rule out growth."""
        return len(self._points) >= FEWEST

    @property
    def end(self) -> float:
        """The last point's step (or second), 0 without points."""
        return self._points[-1].at if self._points else 0.0

    @property
    def span(self) -> float:
        """Steps (or seconds) between the first point and the last."""
        return _span(self._points) if self._points else 0.0

    def _windows(self) -> Iterator[tuple[Sequence[Point], Sequence[Point]]]:
        """Yield the points before each window, and the window."""
        size = len(self._points)
        while size >= FEWEST:
            yield self._points[:-size], self._points[-size:]
            size //= 2


def growth(window: Sequence[Point], threshold: float) -> Growth | None:
    """Return the growth of one window of at least FEWEST points if it is above `threshold`."""
    found = _grows([(point.at, point.allocated) for point in window])
    if found is None or found.low <= threshold:
        return None
    lasting = found.end - found.begin >= LASTING
    return found if lasting or _grows([(point.at, point.blocks) for point in window]) else None


def _is_new(window: Sequence[Point], earlier: Sequence[Point]) -> bool:
    """Return whether much of the rise is above all that was held earlier, or has lasted longer than that.

    Memory that fills and empties repeatedly (cyclic garbage, a flushed buffer) returns to its earlier height.
    """
    if not earlier or _span(earlier) <= NEARLY * _span(window):
        return True
    lowest = [allocated for _, allocated in _envelope([(point.at, point.allocated) for point in window])]
    groups = (earlier[place : place + HELD] for place in range(0, len(earlier) - HELD + 1, HELD))
    highest = max((min(point.allocated for point in group) for group in groups), default=0)
    return lowest[-1] - highest >= SHARE * (lowest[-1] - min(lowest))


def _span(points: Sequence[Point]) -> float:
    return points[-1].at - points[0].at


def _grows(points: Sequence[tuple[float, float]]) -> Growth | None:
    """Return None if the slope may be 0, consists of a few jumps, or has ended."""
    lowest = _envelope(points)
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(lowest, 2))
    rate = median(slopes)
    below = _rank_below(len(lowest), len(slopes))
    if slopes[below] <= 0:
        return None
    pairs = list(pairwise(lowest))
    rises = [(b[1] - a[1]) / (b[0] - a[0]) >= SHARE * rate for a, b in pairs]
    if not _steady(rises, _lengths(points)):
        return None
    rising = [pair for pair, rise in zip(pairs, rises) if rise]
    begin = rising[0][1][0] - _lasted(rising[0], rate)
    return Growth(rate, slopes[below], slopes[-1 - below], begin, rising[-1][0][0] + _lasted(rising[-1], rate))


def _steady(rises: Sequence[bool], lengths: Sequence[float]) -> bool:
    """Return whether most buckets rise, by number and by steps, one of the last two included.

    By steps too, because the first steps are sampled more often: most buckets may be warm-up.
    """
    rising = sum(length for length, rise in zip(lengths, rises) if rise)
    return sum(rises) >= STEADY and NEARLY * rising >= STEADY / len(rises) * sum(lengths) and any(rises[-2:])


def _lengths(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return the steps (or seconds) from the middle of each bucket to the next, wherever its lowest point is."""
    middles = [points[(a + b) // 2][0] for a, b in pairwise(_edges(len(points)))]
    return [b - a for a, b in pairwise(middles)]


def _lasted(pair: tuple[tuple[float, float], tuple[float, float]], rate: float) -> float:
    """Return the steps that a rise between two lowest points takes at this rate; it may begin or end within."""
    (earlier, low), (later, high) = pair
    return min(later - earlier, (high - low) / rate)


def _edges(points: int) -> list[int]:
    return [points * bucket // BUCKETS for bucket in range(BUCKETS + 1)]


def _envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [min(points[a:b], key=lambda point: point[1]) for a, b in pairwise(_edges(len(points)))]


def _rank_below(points: int, pairs: int) -> int:
    """Return how many of the ordered slopes are below the interval (P. K. Sen, 1968)."""
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    return max(0, int((pairs - SURE * deviation) / 2))
