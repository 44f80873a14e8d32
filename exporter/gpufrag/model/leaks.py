"""Whether allocated memory grows from step to step for ever, told from what is only warm-up, noise or a new phase.

Looked at is the lower envelope: a window of the series is cut into BUCKETS of as many points each, and of each the
lowest point counts, so that what comes and goes within a few steps (evaluation, a checkpoint, a long sequence) is not
seen. The slope is the median of all pairwise slopes of these (Theil-Sen), with Sen's interval from Kendall's statistic.
It is called growth where the interval lies above a threshold *and* most buckets lie that much above the one before,
most by number and most by steps, the last ones among them: memory that was taken once or a few times (optimizer state,
an average of the weights, a compiled graph) makes a slope too, but in steps, or one that ends.

A kept tensor adds a block each time, while longer sequences make the same blocks larger. So growth in the number of
blocks is believed after some fifty points; growth in bytes alone must last LASTING steps.
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
"""Points of a window: below it the lowest of a bucket is no envelope."""
LASTING = 400.0
"""Steps (or seconds) for which bytes must grow where the number of blocks does not."""
MOST = 16 * FEWEST
"""Points that are kept. When there are more, every second one goes: the window widens, its cost does not."""
SURE = 2.576
"""Standard deviations of Kendall's statistic: an interval of 99 %."""
SHARE = 0.4
"""Of the whole slope that a bucket must have to count as growing, over the one before it."""
STEADY = 8
"""So many of the BUCKETS - 1 must count as growing."""

NEARLY = 1.05
"""What lasts so many times shorter counts as lasting as long: buckets differ by a point."""
HELD = 4
"""Points in a row for which memory must have been held to count: fewer are a peak."""


class Point(NamedTuple):
    """At `at` (a step's number, or seconds) `allocated` bytes were in `blocks` live allocations."""

    at: float
    allocated: int
    blocks: int


@dataclass(frozen=True)
class Growth:
    """Bytes per step (or second) with their 99 % interval, from where it begins to rise to where it last did."""

    rate: float
    low: float
    high: float
    begin: float
    end: float


class Series:
    """Points in order, bounded: old ones are thinned out."""

    def __init__(self) -> None:
        self.added = 0
        """Points, those among them that were thinned out."""
        self._points: list[Point] = []
        self._every = 1
        self._passed = 0

    def add(self, point: Point) -> None:
        """A point whose `at` is not above the last one begins a new series: the count of steps was reset."""
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
        """What grows by more than `threshold` bytes per step; None where nothing does, or too little is known yet.

        The longest window that grows is reported: it has the narrowest interval. A short one counts only where it
        leads to what was never held before.
        """
        windows = ((earlier, growth(window, threshold), window) for earlier, window in self._windows())
        return next((found for earlier, found, window in windows if found and _is_new(window, earlier)), None)

    @property
    def decided(self) -> bool:
        """Whether there is enough to say that nothing grows."""
        return len(self._points) >= FEWEST

    @property
    def end(self) -> float:
        """The last point's step (or second); 0 before the first."""
        return self._points[-1].at if self._points else 0.0

    @property
    def span(self) -> float:
        """Steps (or seconds) between the first point and the last."""
        return _span(self._points) if self._points else 0.0

    def _windows(self) -> Iterator[tuple[Sequence[Point], Sequence[Point]]]:
        """What came before, and the window."""
        size = len(self._points)
        while size >= FEWEST:
            yield self._points[:-size], self._points[-size:]
            size //= 2


def growth(window: Sequence[Point], threshold: float) -> Growth | None:
    """The growth of one window of at least FEWEST points, if there is one above `threshold`."""
    found = _grows([(point.at, point.allocated) for point in window])
    if found is None or found.low <= threshold:
        return None
    lasting = found.end - found.begin >= LASTING
    return found if lasting or _grows([(point.at, point.blocks) for point in window]) else None


def _is_new(window: Sequence[Point], earlier: Sequence[Point]) -> bool:
    """Whether much of the rise lies above all that was held for a while earlier, or it has lasted longer than that.

    What fills and empties again and again (garbage in cycles, a buffer that is flushed) comes to where it was before.
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
    """None where the slope may be 0, or is made of a few jumps, or has ended."""
    lowest = _envelope(points)
    slopes = _slopes(lowest)
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
    """Whether most of all buckets rise, by number and by steps, and one of the last two among them.

    By steps too: where the first steps are read more often than later ones, most buckets may lie in a warm-up.
    """
    rising = sum(length for length, rise in zip(lengths, rises) if rise)
    return sum(rises) >= STEADY and NEARLY * rising >= STEADY / len(rises) * sum(lengths) and any(rises[-2:])


def _lengths(points: Sequence[tuple[float, float]]) -> list[float]:
    """Steps (or seconds) from the middle of each bucket to that of the next: wherever their lowest points lie."""
    middles = [points[(a + b) // 2][0] for a, b in pairwise(_edges(len(points)))]
    return [b - a for a, b in pairwise(middles)]


def _lasted(pair: tuple[tuple[float, float], tuple[float, float]], rate: float) -> float:
    """The steps that the rise from one lowest point to the next takes at this rate: it may begin or end within."""
    (earlier, low), (later, high) = pair
    return min(later - earlier, (high - low) / rate)


def _edges(points: int) -> list[int]:
    return [points * bucket // BUCKETS for bucket in range(BUCKETS + 1)]


def _envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest point of each bucket."""
    return [min(points[a:b], key=lambda point: point[1]) for a, b in pairwise(_edges(len(points)))]


def _slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    """Of all pairs, in order; a point of one bucket always comes before that of the next."""
    return sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))


def _rank_below(points: int, pairs: int) -> int:
    """How many of the ordered slopes lie below the interval (P. K. Sen, 1968)."""
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    return max(0, int((pairs - SURE * deviation) / 2))
