"""When the next snapshot may be taken: rarely enough for what the last one cost, in one step on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from .settings import AgentSettings


def spacing(settings: AgentSettings, cost: float, recording: bool = False) -> float:
    """Seconds between snapshots that cost `cost` seconds each.

    Always the interval times a power of two (times the factor for history): ranks whose snapshots differ in
    cost still meet at every multiple of the longer spacing.
    """
    shortest = settings.interval * (settings.history_factor if recording else 1.0)
    wanted = cost / settings.budget
    doublings = max(0, math.ceil(math.log2(wanted / shortest))) if wanted > 0 else 0
    return shortest * 2.0**doublings


def next_multiple(period: float, now: float) -> float:
    """The first multiple of `period` after `now`."""
    return (math.floor(now / period) + 1) * period


class Schedule:
    """Windows that begin at multiples of the spacing on the system's clock; one snapshot in each.

    It is taken at the first step boundary in the window, which is one step for all ranks of a job. A process
    that does not step is sampled at a random phase of the window, so as not to beat with what it does; one
    that does is given the whole window to reach a boundary. `now` is always in seconds of the system clock.
    """

    def __init__(self, settings: AgentSettings, now: float, chance: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._chance = chance or Random().random  # not the module's generator: the trainer may have seeded that
        self._spacing = spacing(settings, 0.0)
        self._opens, self._phase = now, self._chance()
        self._last_step = self._taken_at = -math.inf
        self._cost, self._recording = 0.0, False
        self._by_chance = False

    @property
    def window(self) -> float:
        """Seconds that a window lasts now."""
        return self._spacing

    def at_step(self, now: float) -> bool:
        """A step has ended; True where a snapshot is due at its boundary. Called after every step: it is cheap."""
        self._last_step = now
        return now >= self._opens and not self._by_chance

    def at_timer(self, now: float) -> bool:
        """True where a snapshot is due although no step ends now."""
        if self._opens - now > 2 * self._spacing:  # the clock was set back
            self._plan(now)
        return now >= self.timer(now)

    def timer(self, now: float) -> float:
        """When `at_timer` will be true if nothing happens until then."""
        stepping = now - self._last_step <= self._spacing and not self._by_chance
        return self._opens + self._spacing * (1.0 if stepping else self._phase)

    def taken(self, now: float, cost: float, recording: bool) -> None:
        """A snapshot was taken, or could not be, and cost so many seconds in all."""
        self._spacing = spacing(self._settings, cost, recording)
        self._taken_at, self._cost, self._recording = now, cost, recording
        self._plan(now)

    def leave_to_chance(self, now: float) -> None:
        """No step tells when: the snapshot of this window comes at a random phase of one that begins now."""
        self._opens, self._by_chance = now, True

    def hasten(self, now: float) -> None:
        """Something has happened: let the next window begin now, or as soon as the last snapshot is paid for.

        Not while history is recorded: what snapshots cost the user then is no time.
        """
        paid = self._taken_at + self._cost / self._settings.budget
        if not self._recording and (soon := max(now, paid)) < self._opens:
            self._opens, self._phase = soon, 0.0

    def _plan(self, now: float) -> None:
        self._opens = next_multiple(self._spacing, now)
        self._phase = self._chance()
        self._by_chance = False
