"""One step whose memory is followed: when to look next, what was seen, and whether now is the time for a copy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .peak import PHASE, Curve, Experience, Level, Point, Watch

SHORTEST = 20e-6
"""Seconds. The system makes about four times as much of it; meanwhile the interpreter is the program's."""
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
    """Fed with levels by the agent's thread. `start` was read at the boundary at which the step began."""

    def __init__(self, experience: Experience, start: Level, began: float, plan: Plan) -> None:
        self._zone, self._rule = experience.zone, experience.rule
        self._watch = Watch(self._rule, start.active) if self._rule else None
        self._start, self._began, self._plan = start, began, plan
        self._points = [Point(0.0, 0, start.active, start.active)]
        self._peak, self._copied_at = start.active, -1
        self._spent = self._last_read = 0.0
        self._broken = False
        self.ended = False
        """Set by the program's thread, once the next boundary is reached."""

    @property
    def copied(self) -> bool:
        return self._copied_at >= 0

    def see(self, level: Level, now: float, took: float) -> bool:
        """Note a level that was read just now, in `took` seconds. True where the heap is to be copied at once."""
        self._spent += took
        self._last_read = took
        place = level.allocations - self._start.allocations
        if self.ended or place < self._points[-1].allocations:  # the user reset the statistics
            self._broken |= not self.ended
            return False
        self._points.append(Point(now - self._began, place, level.active, level.active))
        self._peak = max(self._peak, level.active)
        if level.peak_active > self._start.peak_active:  # a new maximum of the whole run lies in this step
            self._peak = max(self._peak, level.peak_active)
        if self._watch is None or self.copied or not self._watch.due(place, level.active):
            return False
        self._copied_at = len(self._points) - 1
        return True

    def found(self, active: int) -> None:
        """So much was active in the copy."""
        self._points[self._copied_at] = self._points[self._copied_at]._replace(soon=active)
        self._peak = max(self._peak, active)

    def over(self, now: float) -> bool:
        """Whether there is nothing more to see, or no more to be spent on it."""
        waits = self._last_read > LONG_READING or self._spent > OVERSPENT * self._plan.allowance
        return self.ended or self._broken or waits or now - self._began > ENDLESS * self._plan.length

    def pause(self) -> float:
        """Seconds until the next reading. 0 where the peak is near and memory moves: then at once."""
        place, zone = self._points[-1].allocations, self._zone
        if zone is None or not zone.begin <= place <= zone.end:
            return max(SHORTEST, self._plan.length / self._plan.readings)
        if zone.seconds > self._plan.allowance and not self._at_brink(place):
            return max(SHORTEST, zone.seconds / self._plan.readings)
        moves = len(self._points) > 1 and place != self._points[-2].allocations
        return 0.0 if moves else SHORTEST  # where it stands still, the program may wait for the interpreter

    def _at_brink(self, place: int) -> bool:
        rule = self._rule
        return not self.copied and rule is not None and rule.method == PHASE and 0 <= rule.threshold - place <= BRINK

    def curve(self) -> Curve | None:
        """The step as it was seen; None for one that was not seen to its end."""
        if not self.ended or self._broken or len(self._points) < 3:
            return None
        copied = self._points[self._copied_at] if self.copied else None
        points = [
            point if point is copied else point._replace(soon=after.active) for point, after in pairwise(self._points)
        ]
        return Curve((*points, self._points[-1]), self._peak)
