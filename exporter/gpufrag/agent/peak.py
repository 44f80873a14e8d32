"""Where in a training step its memory peaks: told from earlier steps whose memory was followed. Pure.

A step's place is counted in allocations since the step began. That count does not depend on the batch's length or
on the speed of the device, as time does: the same operation of the same model comes at the same count.

A copy of the heap comes a moment after the reading that called for it, and the highest spike of a step may be over by
then. So what a reading is worth is not the level that it shows but the one that was found directly after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

PHASE, LEVEL, FALL, TIMER = "phase", "level", "fall", "timer"
METHODS = (PHASE, LEVEL, FALL, TIMER)
"""How the peak is told: by its place in the step, by the height that steps reach, by the first fall, or not at all."""

REMEMBERED = 8
"""Steps. Each is some hundred points; the oldest goes when a step is added."""
FLAT = 0.02
"""Of its peak: a step that rises by less has none worth looking for."""
CANDIDATES = 8
"""Places that are tried of each remembered step."""
HIGH = 0.85
"""Of a step's peak: from here on it is looked at closely."""
CREDIBLE = 0.5
"""Of the lowest rise found at the peak's place: a step that has risen by less there is of another kind (evaluation)."""
FALLS = (0.02, 0.05, 0.1)
LEVELS = (0.99, 0.96, 0.93, 0.9, 0.8)


class Level(NamedTuple):
    """A framework's cheapest figures, of one device: bytes, and allocations made so far."""

    active: int
    allocations: int
    peak_active: int
    """The most that was ever active at once, or since its user's last reset."""


class Point(NamedTuple):
    """One reading: seconds and allocations since the step began, active bytes then, and directly after."""

    time: float
    allocations: int
    active: int
    soon: int


@dataclass(frozen=True)
class Curve:
    """A followed step: its readings in order, and the highest level that is known of it; in bytes."""

    points: tuple[Point, ...]
    peak: int

    @property
    def base(self) -> int:
        return self.points[0].active

    @property
    def rises(self) -> bool:
        return self.peak - min(point.active for point in self.points) > FLAT * self.peak

    def at(self, allocations: int) -> Point | None:
        """The first reading there or later."""
        index = bisect_left(self.points, allocations, key=_allocations)
        return self.points[index] if index < len(self.points) else None


@dataclass(frozen=True)
class Rule:
    """When to copy the heap.

    PHASE: at `threshold` allocations, if active bytes rose by `floor` until then, else as FALL. LEVEL: at `threshold`
    active bytes. FALL: once a share `threshold` of a rise of more than `floor` bytes is given back.
    """

    method: str
    threshold: float
    floor: float = 0.0


class Watch:
    """Tells for one step, reading by reading, whether now is the time."""

    def __init__(self, rule: Rule, base: int) -> None:
        self._rule, self._base = rule, base
        self._high = base
        self._passed = False

    def due(self, allocations: int, active: int) -> bool:
        self._high = max(self._high, active)
        if self._rule.method == LEVEL:
            return active >= self._rule.threshold
        if self._rule.method == PHASE and not self._passed:
            self._passed = allocations >= self._rule.threshold
            return self._passed and active - self._base >= self._rule.floor
        share = self._rule.threshold if self._rule.method == FALL else FALLS[0]
        rise = self._high - self._base
        return rise > self._rule.floor and self._high - active > share * rise


@dataclass(frozen=True)
class Zone:
    """Where in a step its highest levels lie, in allocations, and for how many seconds they last."""

    begin: int
    end: int
    seconds: float


class Experience:
    """What earlier steps tell about the next one."""

    def __init__(self) -> None:
        self._curves: deque[Curve] = deque(maxlen=REMEMBERED)
        self.rule: Rule | None = Rule(FALL, FALLS[1])
        self.zone: Zone | None = None

    @property
    def method(self) -> str:
        return TIMER if self.rule is None else self.rule.method

    def learn(self, curve: Curve) -> None:
        """Add a step that was followed to its end. `rule` is None afterwards where steps have no peak."""
        self._curves.append(curve)
        rising = [known for known in self._curves if known.rises]
        self.rule = best_rule(rising) if 2 * len(rising) >= len(self._curves) and rising else None
        self.zone = _zone(rising) if rising else None


def best_rule(curves: Sequence[Curve]) -> Rule:
    """The rule by which copies of these steps would have come nearest to their peaks, on average."""
    return max(_candidates(curves), key=lambda rule: fmean(coverage(rule, curve) for curve in curves))


def coverage(rule: Rule, curve: Curve) -> float:
    """Active bytes in a copy taken by `rule`, over the step's peak; a rule that finds nothing gets its beginning."""
    found = curve.at(int(rule.threshold)) if rule.method == PHASE else None
    if found is None or found.active - curve.base < rule.floor:
        watch = Watch(rule, curve.base)
        found = next((point for point in curve.points if watch.due(point.allocations, point.active)), curve.points[0])
    return found.soon / curve.peak


def _candidates(curves: Sequence[Curve]) -> Iterator[Rule]:
    """From the most specific on: of two that are equally good, `max` keeps the first."""
    lowest, highest = min(curve.peak - curve.base for curve in curves), max(curve.peak for curve in curves)
    if len(curves) > 1:
        for place in sorted(set(_places(curves))):
            yield Rule(PHASE, place, CREDIBLE * min(_rises(curves, place)))
        for share in LEVELS:
            yield Rule(LEVEL, share * highest)
    for share in FALLS:
        yield Rule(FALL, share, CREDIBLE * lowest)


def _places(curves: Iterable[Curve]) -> Iterator[int]:
    for curve in curves:
        for point in sorted(curve.points, key=_worth)[-CANDIDATES:]:
            yield point.allocations


def _rises(curves: Iterable[Curve], place: int) -> list[int]:
    return [point.active - curve.base for curve in curves if (point := curve.at(place))]


def _zone(curves: Sequence[Curve]) -> Zone:
    spans = [_span(curve) for curve in curves]
    return Zone(
        min(first.allocations for first, _ in spans),
        max(last.allocations for _, last in spans),
        median(last.time - first.time for first, last in spans),
    )


def _span(curve: Curve) -> tuple[Point, Point]:
    height = HIGH * (curve.peak - curve.base) + curve.base
    high = [index for index, point in enumerate(curve.points) if point.active >= height]
    if not high:  # a spike that no reading met
        return curve.points[0], curve.points[-1]
    return curve.points[max(0, high[0] - 1)], curve.points[min(len(curve.points) - 1, high[-1] + 1)]


def _allocations(point: Point) -> int:
    return point.allocations


def _worth(point: Point) -> int:
    return point.soon
