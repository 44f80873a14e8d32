"""When the agent may act: clocks, a budget for small costs, and the windows in which snapshots are taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .settings import AgentSettings


@dataclass(frozen=True)
class Clocks:
    """Wall time for what is published, monotonic time for durations, the thread's own CPU time; in seconds."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.thread_time


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` tokens per second. It may be overdrawn down to `-max_debt`."""

    def __init__(self, rate: float, burst: float, now: float, max_debt: float = math.inf) -> None:
        self._rate, self._burst, self._max_debt = rate, burst, max_debt
        self._tokens, self._since = burst, now

    def level(self, now: float) -> float:
        """The tokens at `now`; negative after an overdraft."""
        self._tokens = min(self._burst, self._tokens + self._rate * max(0.0, now - self._since))
        self._since = now
        return self._tokens

    def spend(self, tokens: float) -> None:
        self._tokens = max(-self._max_debt, self._tokens - tokens)


def spacing(settings: AgentSettings, cost: float, history_in_use: bool = False) -> float:
    """Seconds between snapshots that cost `cost` seconds each.

    Always the interval times a power of two (times the factor for history), so ranks whose snapshots differ in cost
    still meet at every multiple of the longer spacing.
    """
    shortest = settings.interval * (settings.history_factor if history_in_use else 1.0)
    wanted = cost / settings.budget
    doublings = max(0, math.ceil(math.log2(wanted / shortest))) if wanted > 0 else 0
    return shortest * 2.0**doublings


def next_multiple(period: float, now: float) -> float:
    return (math.floor(now / period) + 1) * period


class Schedule:
    """Windows that begin at multiples of the spacing on the system's clock, with one snapshot or recording in each.

    It begins at the first step boundary in the window, which is the same step in all ranks of a job. In a process
    without steps it comes at a random phase of the window, so that it does not keep pace with the program. A process
    with steps has the whole window to reach a boundary. `now` is always in seconds of the system clock.
    """

    def __init__(self, settings: AgentSettings, now: float, chance: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._chance = chance or Random().random  # the program may have seeded the module's own generator
        self._spacing = spacing(settings, 0.0)
        self._opens, self._phase = now, self._chance()
        self._last_step = self._taken_at = -math.inf
        self._cost, self._history_in_use = 0.0, False

    @property
    def window(self) -> float:
        return self._spacing

    def at_step(self, now: float) -> bool:
        """A step has ended; return whether a snapshot is due. Called after every step, so it is cheap."""
        self._last_step = now
        return now >= self._opens

    def at_timer(self, now: float) -> bool:
        """Return whether a snapshot is due although no step ends now."""
        if self._opens - now > 2 * self._spacing:  # the clock was set back
            self._plan(now)
        return now >= self.timer(now)

    def timer(self, now: float) -> float:
        """When `at_timer` becomes true if no step ends before."""
        stepping = now - self._last_step <= self._spacing
        return self._opens + self._spacing * (1.0 if stepping else self._phase)

    def taken(self, now: float, cost: float, history_in_use: bool) -> None:
        """A snapshot was taken or failed, and cost that many seconds in all."""
        self._spacing = spacing(self._settings, cost, history_in_use)
        self._taken_at, self._cost, self._history_in_use = now, cost, history_in_use
        self._plan(now)

    def hasten(self, now: float) -> None:
        """Let the next window begin now, or as soon as the last snapshot is paid for.

        Not while the user records history: then a snapshot costs entries of the user's history, not time.
        """
        paid = self._taken_at + self._cost / self._settings.budget
        if not self._history_in_use and (soon := max(now, paid)) < self._opens:
            self._opens, self._phase = soon, 0.0

    def _plan(self, now: float) -> None:
        self._opens = next_multiple(self._spacing, now)
        self._phase = self._chance()
