"""Watches whether the program's memory grows from step to step, or, where it takes none, from second to second.

Points are taken in the trainer's thread after a step, all the rest happens in the agent's. Each costs what a reading
of the cheap statistics costs, so that they are taken at every step only where steps are long.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ..model.call_sites import Held, Sites, Stack, grown
from ..model.leaks import FEWEST, LASTING, Growth, Point, Series
from ..wire.sample import GrowingStack, Leak
from .clocks import Clocks
from .leak_finding import finding, no_longer, places
from .settings import AgentSettings
from .sources import TellsLive

SHARE = 0.0002
"""Of wall time that points may take in the trainer's thread, and as much again for judging them in the agent's."""
CREDIT = 0.01
"""Seconds that may be spent at once, so that the first steps are all read, however short they are: as much as one
snapshot may cost."""
MOST_OWED = 0.002
"""Seconds, for one reading: if it took longer, it has waited for what the program's next request would have met too."""
MOST_WAITING = 4096
"""Points that wait for the agent's thread."""
SURELY = 1.25
"""So many times as long as growth must last is watched before it is said that there is none: of growth, only the part
between the first bucket's lowest point and the last one's is counted."""
STEP, SECOND = "step", "second"
logger = logging.getLogger("gpufrag")


class Grew(NamedTuple):
    """What was found last, and after how many readings."""

    growth: Growth
    readings: int


class Purse:
    """Fills with SHARE of the time that goes by, up to CREDIT seconds; what things cost is taken from it.

    Of one cost `most_owed` seconds at most are owed.
    """

    def __init__(self, now: float, most_owed: float) -> None:
        self._filled_at, self._left, self._most_owed = now, CREDIT, most_owed

    def open(self, now: float) -> bool:
        """Whether there is something left. `now` is in seconds of a monotonic clock."""
        self._left = min(CREDIT, self._left + SHARE * (now - self._filled_at))
        self._filled_at = now
        return self._left > 0

    def pay(self, seconds: float) -> None:
        self._left = max(-self._most_owed, self._left - seconds)


class LeakWatch:
    """`boundary` is called in the program's thread after each step, all else in the agent's.

    `spent` is told of every cost, by cause (stats, measure), in seconds.
    """

    def __init__(
        self, source: TellsLive, settings: AgentSettings, clocks: Clocks, spent: Callable[[str, float], None]
    ) -> None:
        self._source, self._clocks, self._spent = source, clocks, spent
        self._threshold = {STEP: settings.leak_threshold, SECOND: settings.leak_threshold / 60}
        self._began = clocks.monotonic()
        self._points, self._judging = Purse(self._began, MOST_OWED), Purse(self._began, CREDIT)
        self._devices: tuple[int, ...] = ()
        self._stepped = self._noted = 0
        self._waiting: deque[tuple[str, int, Point]] = deque(maxlen=MOST_WAITING)
        self._series: dict[tuple[str, int], Series] = {}
        self._leaks: dict[tuple[str, int], Leak] = {}
        self._sites: dict[tuple[int, str], Mapping[Stack, Held]] = {}
        self._stacks: dict[tuple[int, str], tuple[GrowingStack, ...]] = {}
        self._told: set[tuple[tuple[str, int], bool]] = set()
        self._grew: dict[tuple[str, int], Grew] = {}
        """What was told to grow last, as long as it was not taken back."""

    @property
    def unit(self) -> str:
        """What a point is one of: a process that takes steps is judged by them."""
        return STEP if self._stepped else SECOND

    @property
    def _moment(self) -> str:
        """Of the snapshots that are compared by place."""
        return "boundary" if self._stepped else "timer"

    def boundary(self, step: int) -> bool:
        """So many steps have ended. True where the cheap figures should be read, or a leak may be told, at once."""
        now, first = self._clocks.monotonic(), not self._stepped
        self._stepped = step
        if not self._devices or not self._points.open(now):
            return first
        try:
            self._note(STEP, step)
        finally:  # a reading that fails costs time too, and is not to be tried at every step
            took = self._clocks.monotonic() - now
            self._points.pay(took)
            self._spent("stats", took)
        self._noted += 1
        return self._noted == FEWEST

    def second(self, devices: Iterable[int]) -> None:
        """The cheap figures of these devices were read just now."""
        self._devices = tuple(devices)
        if not self._stepped:
            self._note(SECOND, self._clocks.monotonic() - self._began)

    def leak(self, device: int) -> Leak | None:
        """As it was judged last; None as long as not enough is known."""
        self._judge()
        return self._leaks.get((self.unit, device))

    def compare(self, at: str, sites: Callable[[], Sites]) -> None:
        """What the program holds by place at a snapshot of the moment `at`: compared with the last one of that kind.

        Of a process that takes steps only at their boundaries: within a step most of it is of that step alone.
        """
        if at != self._moment:
            return
        for device, now in sites().items():
            before, self._sites[device, at] = self._sites.get((device, at)), now
            found = grown(before, now) if before is not None else ()
            self._stacks[device, at] = tuple(GrowingStack(g.size, g.blocks, g.stack) for g in found)

    def _note(self, unit: str, at: float) -> None:
        for device in self._devices:
            if (live := self._source.live(device)) is not None:
                # an untold number of blocks never grows: then only what lasts is called a leak
                self._waiting.append((unit, device, Point(at, live.allocated, live.blocks or 0)))

    def _judge(self) -> None:
        if not self._waiting or not self._judging.open(self._clocks.monotonic()):
            return
        began = self._clocks.cpu()
        while self._waiting:
            unit, device, point = self._waiting.popleft()
            self._series.setdefault((unit, device), Series()).add(point)
        for (unit, device), series in self._series.items():
            if unit == self.unit:
                self._conclude(unit, device, series)
        took = self._clocks.cpu() - began
        self._judging.pay(took)
        self._spent("measure", took)

    def _conclude(self, unit: str, device: int, series: Series) -> None:
        """Without steps nothing tells a warm-up from a leak but time."""
        lasting = LASTING if unit == SECOND else 0.0
        found = series.growth(self._threshold[unit])
        if found is not None and found.end - found.begin >= lasting:
            leak = self._leaks[unit, device] = _leak(unit, found, self._stacks.get((device, self._moment), ()))
            self._grew[unit, device] = Grew(found, series.added)
            self._tell(device, leak)
        elif found is None and series.decided and series.span >= SURELY * lasting:
            self._conclude_nothing(unit, device, series)

    def _conclude_nothing(self, unit: str, device: int, series: Series) -> None:
        """What comes and goes beside a leak may hide it for some readings: it is not over with the first of them."""
        grew = self._grew.get((unit, device))
        if grew is None or series.added - grew.readings >= FEWEST:
            self._leaks[unit, device] = Leak(unit)
            self._take_back(unit, device, series)

    def _tell(self, device: int, leak: Leak) -> None:
        """Once that it leaks, and once where."""
        one, named = (leak.unit, device), bool(leak.stacks)
        if (one, named) in self._told:
            return
        lines = [finding(device, leak)] if (one, not named) not in self._told else []
        self._told.add((one, named))
        for line in [*lines, *([places(device, leak)] if named else [])]:
            _log(line)

    def _take_back(self, unit: str, device: int, series: Series) -> None:
        """Once it has not grown for as long as it grew: it was something that filled, and is full."""
        grew = self._grew.get((unit, device))
        if grew is not None and series.end - grew.growth.end >= grew.growth.end - grew.growth.begin:
            del self._grew[unit, device]
            self._told -= {((unit, device), True), ((unit, device), False)}  # should it begin again, that is news
            _log(no_longer(device, unit, grew.growth))


def _log(line: str) -> None:
    with suppress(Exception):  # the program's own log handlers run below
        logger.warning("gpufrag: %s", line)


def _leak(unit: str, found: Growth, stacks: tuple[GrowingStack, ...]) -> Leak:
    return replace(Leak(unit), **vars(found), stacks=stacks)
