"""Where in a training step its memory peaks: told from earlier steps whose memory was followed. Pure.

A step's place is counted in allocations since the step began. That count does not depend on the batch's length or
on the speed of the device, as time does: the same operation of the same model comes at the same count.

A copy of the heap comes a moment after the reading that called for it, and the highest spike of a step may be over by
then. So what a reading is worth is not the level that it shows but the one that was found directly after it. Which
rule is best is found by rehearsal: by what each would have brought in the steps that are remembered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median, median_low
from typing import NamedTuple

PHASE, LEVEL, FALL, TIMER = "phase", "level", "fall", "timer"
"""How the peak is told: by its place in the step, by the height that steps reach, by the first fall, or not at all."""

REMEMBERED = 8
"""Steps. Each is some hundred points; the oldest goes when a step is added."""
FLAT = 0.02
"""Of its peak: a step that rises by less has none worth looking for."""
CANDIDATES = 6
"""Places that are tried of each remembered step."""
HIGH = 0.75
"""Of the rise to a step's peak: from here on it is looked at closely."""
CREDIBLE = 0.5
"""Of the lowest rise found at the peak's place: a step that has risen by less there is of another kind (evaluation)."""
FALLS = (0.02, 0.05, 0.1, 0.2)
LEVELS = (0.98, 0.95, 0.9, 0.85, 0.75)
BETTER = 0.01
"""Of coverage: a rule is kept until another one is so much better."""


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


@dataclass(frozen=True)
class Rule:
    """When to copy the heap: as soon as `level` bytes are active, at the latest at the place or the fall.

    The place: at `place` allocations, if active bytes have risen by `floor` until then. Where there is none, or the
    rise was less: once a share `fall` of a rise of more than `floor` bytes is given back.
    """

    fall: float
    floor: float = 0.0
    level: float | None = None
    place: int | None = None

    @property
    def method(self) -> str:
        return PHASE if self.place is not None else FALL if self.level is None else LEVEL


class Watch:
    """Tells for one step, reading by reading, whether now is the time."""

    def __init__(self, rule: Rule, base: int) -> None:
        self._rule, self._base = rule, base
        self._high = base
        self._passed = rule.place is None

    def due(self, allocations: int, active: int) -> bool:
        rule, self._high = self._rule, max(self._high, active)
        if rule.level is not None and active >= rule.level:
            return True
        if not self._passed:
            self._passed = rule.place is not None and allocations >= rule.place
            return self._passed and active - self._base >= rule.floor
        rise = self._high - self._base
        return rise > rule.floor and self._high - active > rule.fall * rise


class Rehearsal:
    """What rules would have brought in one step. Answers as `Watch` would, but quickly for many rules."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self._places = [point.allocations for point in curve.points]
        self._first_at_level = cache(self._scan_level)
        self._first_fall = cache(self._scan_fall)

    def coverage(self, rule: Rule) -> float:
        """Active bytes in the copy over the step's peak; a rule that finds no moment gets the beginning."""
        found = self._last_resort(rule)
        if rule.level is not None:
            found = min(found, self._first_at_level(rule.level))
        points = self.curve.points
        return (points[found] if found < len(points) else points[0]).soon / self.curve.peak

    def rise_at(self, place: int) -> int | None:
        index = bisect_left(self._places, place)
        return self.curve.points[index].active - self.curve.base if index < len(self._places) else None

    def _last_resort(self, rule: Rule) -> int:
        if rule.place is None:
            return self._first_fall(rule.fall, rule.floor, 0)
        index = bisect_left(self._places, rule.place)
        if index == len(self._places) or self.curve.points[index].active - self.curve.base >= rule.floor:
            return index
        return self._first_fall(rule.fall, rule.floor, index + 1)

    def _scan_level(self, level: float) -> int:
        points = self.curve.points
        return next((index for index, point in enumerate(points) if point.active >= level), len(points))

    def _scan_fall(self, fall: float, floor: float, begin: int) -> int:
        watch = Watch(Rule(fall, floor), self.curve.base)
        due = (index for index, point in enumerate(self.curve.points) if watch.due(0, point.active) and index >= begin)
        return next(due, len(self.curve.points))


class Zone(NamedTuple):
    """Where in a step its highest levels lie, in allocations, and for how many seconds they last."""

    begin: int
    end: int
    seconds: float


class Experience:
    """What earlier steps tell about the next one."""

    def __init__(self) -> None:
        self._steps: deque[Rehearsal] = deque(maxlen=REMEMBERED)
        self.rule: Rule | None = Rule(FALLS[1])
        """None where steps have no peak."""
        self.zone: Zone | None = None

    @property
    def known(self) -> int:
        """Steps that are remembered."""
        return len(self._steps)

    def learn(self, curve: Curve) -> None:
        """Add a step that was followed to its end."""
        self._steps.append(Rehearsal(curve))
        rising = [step for step in self._steps if step.curve.rises]
        known = 2 * len(rising) >= len(self._steps)
        self.rule = best_rule(rising, self.rule) if known else None
        self.zone = _zone(rising, self.rule.place) if self.rule is not None else None


def best_rule(steps: Sequence[Rehearsal], present: Rule | None = None) -> Rule:
    """The rule by which copies of these steps would have come nearest to their peaks, on average."""

    def worth(rule: Rule) -> float:
        return fmean(step.coverage(rule) for step in steps)

    placed = _placed(steps)
    best = max([*placed, *_unplaced(steps)], key=worth)
    if best.place is not None:  # of several humps it may be better to wait for the last, unless one before is high
        patient = (replace(rule, level=level) for rule in (best, placed[-1]) for level in _levels(steps))
        best = max([best, *patient], key=worth)
    return best if present is None or worth(best) > worth(present) + BETTER else present


def _placed(steps: Sequence[Rehearsal]) -> list[Rule]:
    """In the order of their places. One step does not tell whether the next one is like it."""
    return [_at_place(steps, place) for place in sorted(set(_places(steps)))] if len(steps) > 1 else []


def _unplaced(steps: Sequence[Rehearsal]) -> Iterator[Rule]:
    floor = CREDIBLE * min(step.curve.peak - step.curve.base for step in steps)
    for level in (None, *_levels(steps)):
        yield from (Rule(fall, floor, level) for fall in FALLS)


def _levels(steps: Iterable[Rehearsal]) -> list[float]:
    highest = max(step.curve.peak for step in steps)
    return [share * highest for share in LEVELS]


def _at_place(steps: Iterable[Rehearsal], place: int) -> Rule:
    rises = [rise for step in steps if (rise := step.rise_at(place)) is not None]
    return Rule(FALLS[0], CREDIBLE * min(rises), place=place)


def _places(steps: Iterable[Rehearsal]) -> Iterator[int]:
    """Those of each step where a copy would have found most."""
    for step in steps:
        found: dict[int, int] = {}
        for point in step.curve.points:
            found.setdefault(point.allocations, point.soon)
        yield from sorted(found, key=lambda place: found[place])[-CANDIDATES:]


def _zone(steps: Sequence[Rehearsal], place: int | None) -> Zone:
    spans = [_span(step.curve, place) for step in steps]
    return Zone(
        median_low([first.allocations for first, _ in spans]),
        median_low([last.allocations for _, last in spans]),
        median(last.time - first.time for first, last in spans),
    )


def _span(curve: Curve, place: int | None) -> tuple[Point, Point]:
    """From before to after the high part of a step; if the peak has a place, the high part around that."""
    points, height = curve.points, curve.base + HIGH * (curve.peak - curve.base)
    top = max(range(len(points)), key=lambda index: points[index].active)
    first = last = top if place is None else min(len(points) - 1, bisect_left([p.allocations for p in points], place))
    while first > 0 and (first == last or points[first].active >= height):
        first -= 1
    while last < len(points) - 1 and (last == first + 1 or points[last].active >= height):
        last += 1
    return points[first], points[last]
