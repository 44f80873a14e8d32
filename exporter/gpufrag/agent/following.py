"""One step whose memory is followed: when to look next, what was seen, and whether now is the time for a copy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .peak import TIMER, Curve, Experience, Level, Point, Watch

SHORTEST = 5e-6
"""Seconds. The system adds about fifty microseconds to it; meanwhile the interpreter is the program's."""
LEAST_COST = 10e-6
"""Seconds that a reading is thought to take, at the least."""
MOST_READINGS = 256
"""Planned for one zone of a step, however much may be spent."""
BRINK = 6
"""Allocations before the place of the copy: from there on it is watched as closely as can be."""
OVERSPENT = 2.0
"""Times the allowance. A step that takes longer than the last one costs more than was planned."""
LONG_READING = 0.001
"""Seconds. A reading that took so long has waited for the allocator, as the program does: no more of them."""
FEWEST = 12
"""Readings that make a curve: with fewer, the agent's thread did not get at the interpreter."""
ENDLESS = 4.0
"""Times the length of the last step: one that takes longer is no step, the program does something else."""


@dataclass(frozen=True)
class Plan:
    """In seconds: how long the step should take, what reading it may cost, and what one reading costs."""

    length: float
    allowance: float
    cost: float

    @property
    def readings(self) -> float:
        """One half of the allowance is for the zone of the peak, the other for the rest of the step."""
        return min(MOST_READINGS, max(1.0, self.allowance / (2 * max(LEAST_COST, self.cost))))


class Following:
    """Fed with levels by the agent's thread. `start` was read at the boundary at which the step began.

    A step is either studied, to be learned from, or copied in: a copy takes so long that what follows it is unseen.
    """

    def __init__(self, experience: Experience, start: Level, began: float, plan: Plan, *, study: bool) -> None:
        self._zone, self._rule = experience.zone, None if study else experience.rule
        self._watch = Watch(self._rule, start.active) if self._rule else None
        self._start, self._began, self._plan = start, began, plan
        self._points = [Point(0.0, 0, start.active, start.active)]
        self._peak = start.active
        self._spent = self._last_read = 0.0
        self._broken = self._copied = False
        self.ended = False
        """Set by the program's thread, once the next boundary is reached."""

    @property
    def method(self) -> str:
        """How the peak of this step is told."""
        return self._rule.method if self._rule else TIMER

    def see(self, level: Level, now: float, took: float) -> bool:
        """Note a level that was read just now, in `took` seconds. True where the heap is to be copied at once."""
        self._spent += took
        self._last_read = took
        place = level.allocations - self._start.allocations
        if self.ended:
            return False
        if place < self._points[-1].allocations:  # the user has reset the statistics
            self._broken = True
            return False
        self._note(Point(now - self._began, place, level.active, level.active), level.peak_active)
        self._copied = self._watch is not None and self._watch.due(place, level.active)
        return self._copied

    def over(self, now: float) -> bool:
        """Whether there is nothing more to see, or no more to be spent on it."""
        waits = self._last_read > LONG_READING or self._spent > OVERSPENT * self._plan.allowance
        endless = now - self._began > ENDLESS * self._plan.length
        return self.ended or self._broken or self._copied or waits or endless

    def pause(self) -> float:
        """Seconds until the next reading. 0 where the peak is near and memory moves: then at once."""
        place, zone = self._points[-1].allocations, self._zone
        if zone is None or not zone.begin <= place <= zone.end:
            return max(SHORTEST, self._plan.length / self._plan.readings)
        if self._at_brink(place):
            return self._close_look(zone.seconds * BRINK / (1 + zone.end - zone.begin))
        return self._close_look(zone.seconds)

    def curve(self) -> Curve | None:
        """The step as it was seen; None for one that was not seen to its end."""
        if not self.ended or self._broken or self._copied or len(self._points) < FEWEST:
            return None
        points = [point._replace(soon=after.active) for point, after in pairwise(self._points)]
        return Curve((*points, self._points[-1]), self._peak)

    def _note(self, point: Point, peak_active: int) -> None:
        self._points.append(point)
        self._peak = max(self._peak, point.active)
        if peak_active > self._start.peak_active:  # a new maximum of the whole run lies in this step
            self._peak = max(self._peak, peak_active)

    def _at_brink(self, place: int) -> bool:
        rule = self._rule
        return rule is not None and rule.place is not None and 0 <= rule.place - place <= BRINK

    def _close_look(self, seconds: float) -> float:
        """The pause within something that lasts so long."""
        if seconds > self._plan.allowance:
            return max(SHORTEST, seconds / self._plan.readings)
        moves = len(self._points) > 1 and self._points[-1].allocations != self._points[-2].allocations
        return 0.0 if moves else SHORTEST  # where it stands still, the program may wait for the interpreter
