"""Watches whether the program's memory grows from step to step, or from second to second if it takes no steps.

Points are taken in the program's thread after a step; the rest happens in the agent's thread. A point costs one
reading of the cheap statistics, so every step gets one only if steps are long.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..errors import one_line
from ..model.call_sites import Held, Sites, Stack, grown
from ..model.leaks import FEWEST, LASTING, Growth, Point, Series
from ..units import format_bytes
from ..wire.interrupts import call_confined
from ..wire.sample import GrowingStack, Leak
from .schedule import Clocks, TokenBucket
from .settings import AgentSettings
from .sources import RecordsStacks, ReportsLive

SHARE = 0.0002
"""Of wall time that points may take in the program's thread, and as much again for judging them in the agent's."""
BURST = 0.01
"""Seconds that may be spent at once, so that the first steps all get a point; a snapshot may cost as much."""
MAX_DEBT = 0.002
"""Seconds, for one reading: a longer one waited for a lock that the program's next request would have waited for."""
MAX_WAITING = 4096
"""Points that wait for the agent's thread."""
CLEAR_MARGIN = 1.25
"""How much longer than growth must last a series is watched before it is called free of growth."""
NAMED_STEPS = 3
"""Steps whose allocations are recorded with their stacks when growth is found, once for each growth."""
STEP, SECOND = "step", "second"
_NAMES_STEPS = (
    f"the agent records the next {NAMED_STEPS} steps and logs the lines whose memory grows; if it logs none, run "
    f"gpufrag record {{pid}} --steps {NAMED_STEPS} --stacks -o leak.pickle (docs/leaks.md)"
)
_WITHOUT_STEPS = "to get the lines, record the allocator's history in the program (docs/leaks.md)"
UNKNOWN_PLACE = "no Python stack (a backward pass, or from before the history)"
logger = logging.getLogger("gpufrag")


class Found(NamedTuple):
    """The growth found last, and the number of readings at that time."""

    growth: Growth
    readings: int


class LeakWatch:
    """`boundary` is called in the program's thread after each step, everything else in the agent's.

    Every cost is added to `stalls`, in seconds by cause (stats, measure, snapshot).
    """

    def __init__(self, source: ReportsLive, settings: AgentSettings, clocks: Clocks, stalls: dict[str, float]) -> None:
        self._source, self._clocks, self._stalls = source, clocks, stalls
        self._threshold = {STEP: settings.leak_threshold, SECOND: settings.leak_threshold / 60}
        self._began = now = clocks.monotonic()
        self._points, self._judging = TokenBucket(SHARE, BURST, now, MAX_DEBT), TokenBucket(SHARE, BURST, now, BURST)
        self._devices: tuple[int, ...] = ()
        self._stepped = self._noted = 0
        self._waiting: deque[tuple[str, int, Point]] = deque(maxlen=MAX_WAITING)
        self._series: dict[tuple[str, int], Series] = {}
        self._leaks: dict[tuple[str, int], Leak] = {}
        self._sites: dict[tuple[int, str], Mapping[Stack, Held]] = {}
        self._stacks: dict[tuple[int, str], tuple[GrowingStack, ...]] = {}
        self._naming: int | None = None
        """Steps recorded with stacks so far; None while none are."""
        self._first_sites: Callable[[], Sites] | None = None
        self._found_sites: tuple[Callable[[], Sites], Callable[[], Sites]] | None = None
        self._tried: set[tuple[str, int]] = set()
        self._logged: set[tuple[tuple[str, int], bool]] = set()
        self._found: dict[tuple[str, int], Found] = {}
        """The growth reported last, until it has ended."""

    @property
    def unit(self) -> str:
        """What a point stands for: a step, in a process that takes steps."""
        return STEP if self._stepped else SECOND

    @property
    def _moment(self) -> str:
        """Of the snapshots that are compared by call site."""
        return "boundary" if self._stepped else "timer"

    def boundary(self, step: int) -> bool:
        """A step has ended, the `step`th. Return whether the cheap figures should be read, or a leak judged, now."""
        now, first = self._clocks.monotonic(), not self._stepped
        self._stepped = step
        if not self._devices or self._points.level(now) <= 0:
            return first
        try:
            self._note(STEP, step)
        finally:  # a failed reading costs time too; do not retry at every step
            took = self._clocks.monotonic() - now
            self._points.spend(took)
            self._stalls["stats"] += took
        self._noted += 1
        return self._noted == FEWEST

    @property
    def naming(self) -> bool:
        """Whether steps are to be recorded with stacks, or are."""
        return self._naming is not None

    def name_step(self) -> None:
        """A step has ended while `naming`: begin to record stacks, copy the live blocks that have one, or end."""
        source, steps = self._source, self._naming
        if steps is None or not isinstance(source, RecordsStacks):
            return
        began = self._clocks.monotonic()
        self._naming = None  # also if anything below fails
        try:
            if steps == 0:
                self._naming = 1 if source.start_stacks() else None
            elif steps == 1:
                self._first_sites = source.allocated_since(stop=False)
                self._naming = 2 if self._first_sites is not None else None
            elif steps < NAMED_STEPS:
                self._naming = steps + 1
            else:
                first, last = self._first_sites, source.allocated_since(stop=True)
                self._found_sites = (first, last) if first is not None and last is not None else None
        finally:
            self._stalls["snapshot"] += self._clocks.monotonic() - began

    def stop(self) -> None:
        """End a recording of stacks that is underway."""
        if self._naming and isinstance(self._source, RecordsStacks):
            self._naming = None
            self._source.allocated_since(stop=True)

    def second(self, devices: Iterable[int]) -> None:
        """The cheap figures of these devices were read just now."""
        self._devices = tuple(devices)
        if not self._stepped:
            self._note(SECOND, self._clocks.monotonic() - self._began)

    def leak(self, device: int) -> Leak | None:
        """The latest judgement; None until enough is known."""
        self._judge()
        return self._leaks.get((self.unit, device))

    def compare(self, at: str, sites: Callable[[], Sites]) -> None:
        """Compare what the program holds by call site at this snapshot with the last snapshot of the same moment.

        In a process with steps only boundaries count: within a step most memory belongs to that step alone.
        """
        if at != self._moment:
            return
        for device, now in sites().items():
            before, self._sites[device, at] = self._sites.get((device, at)), now
            growing = grown(before, now) if before is not None else ()
            self._stacks[device, at] = tuple(GrowingStack(site.size, site.blocks, site.stack) for site in growing)

    def _note(self, unit: str, at: float) -> None:
        for device in self._devices:
            if (live := self._source.live(device)) is not None:
                # an unknown number of blocks never grows: then only growth that lasts is called a leak
                self._waiting.append((unit, device, Point(at, live.allocated, live.blocks or 0)))

    def _name(self) -> None:
        """Keep the lines that hold more after the last recorded step than after the first."""
        if (found := self._found_sites) is None:
            return
        self._found_sites = self._first_sites = None
        before, now = (copied() for copied in found)
        for device, sites in now.items():
            growing = grown(before.get(device, {}), sites)
            if growing:
                stacks = tuple(GrowingStack(site.size, site.blocks, site.stack) for site in growing)
                self._stacks[device, self._moment] = stacks

    def _judge(self) -> None:
        self._name()
        if not self._waiting or self._judging.level(self._clocks.monotonic()) <= 0:
            return
        began = self._clocks.cpu()
        while self._waiting:
            unit, device, point = self._waiting.popleft()
            self._series.setdefault((unit, device), Series()).add(point)
        for (unit, device), series in self._series.items():
            if unit == self.unit:
                self._judge_series(unit, device, series)
        took = self._clocks.cpu() - began
        self._judging.spend(took)
        self._stalls["measure"] += took

    def _judge_series(self, unit: str, device: int, series: Series) -> None:
        """Without steps only time distinguishes a warm-up from a leak."""
        lasting = LASTING if unit == SECOND else 0.0
        growth = series.growth(self._threshold[unit])
        if growth is not None and growth.end - growth.begin >= lasting:
            stacks = self._stacks.get((device, self._moment), ())
            leak = self._leaks[unit, device] = replace(Leak(unit), **vars(growth), stacks=stacks)
            self._found[unit, device] = Found(growth, series.added)
            self._report(device, leak)
        elif growth is None and series.decided and series.span >= CLEAR_MARGIN * lasting:
            self._judge_clear(unit, device, series)

    def _judge_clear(self, unit: str, device: int, series: Series) -> None:
        """Other memory may hide a leak for some readings, so it is not over with the first of them."""
        found = self._found.get((unit, device))
        if found is not None and series.added - found.readings < FEWEST:
            return
        self._leaks[unit, device] = Leak(unit)
        if found is None:
            return
        growth = found.growth
        if series.end - growth.end >= growth.end - growth.begin:  # it has not grown for as long as it grew
            del self._found[unit, device]
            self._tried.discard((unit, device))
            self._logged -= {((unit, device), True), ((unit, device), False)}
            _log(
                f"device {device}: allocated memory has not grown since {unit} {growth.end:.0f}: it was no leak but "
                "something that filled up (a cache, a buffer, shapes that are compiled one by one)"
            )

    def _report(self, device: int, leak: Leak) -> None:
        """Log once that it leaks, and once where."""
        key, named = (leak.unit, device), bool(leak.stacks)
        by_steps = leak.unit == STEP and isinstance(self._source, RecordsStacks)
        if by_steps and not named and key not in self._tried and self._naming is None:
            self._tried.add(key)
            self._naming = 0
        if (key, named) in self._logged:
            return
        if (key, not named) not in self._logged:
            low, rate, high = (format_bytes(round(value)) for value in (leak.low, leak.rate, leak.high))
            _log(
                f"device {device}: allocated memory grows by {rate} per {leak.unit} ({low} to {high}), from "
                f"{leak.unit} {leak.begin:.0f} to {leak.end:.0f}; look for tensors that are kept (a loss summed with "
                f"its graph, a list, a cache); {_NAMES_STEPS.format(pid=os.getpid()) if by_steps else _WITHOUT_STEPS}"
            )
        self._logged.add((key, named))
        if named:
            places = (
                f"{format_bytes(place.grown)} in {place.blocks} blocks at {' < '.join(place.frames) or UNKNOWN_PLACE}"
                for place in leak.stacks
            )
            _log(f"device {device}: memory grew at these lines: {'; '.join(places)}")


def _log(line: str) -> None:
    call_confined(logger.warning, "gpufrag: %s", one_line(line))
