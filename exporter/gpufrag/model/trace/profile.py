"""A device over its trace: quantities at chosen moments, what each call site allocated, and the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..allocatable import Driver
from ..call_sites import Stack, call_site, frames_of
from ..fragmentation import Fragmentation, measure
from ..heap import INACTIVE, Heap
from .events import ALLOC, EMPTY_CACHE, FREE_COMPLETED, GROWS, OOM, SHRINKS, Event
from .history import heaps_at

STRETCHES = 32
"""The number of equal stretches of the trace; each is measured once, where most memory is active."""
MOST_SIZES = 64
NEARLY_FULL = 0.05
"""Free share of the limit below which the ratio is not meaningful."""
LARGE = 1 << 20
SHORT = 0.02
"""Share of the trace below which a block is temporary."""


@dataclass
class SiteStats:
    """What one call site allocated in the trace."""

    count: int = 0
    size: int = 0
    small: int = 0
    """Allocations of at most LARGE bytes."""
    sizes: set[int] = field(default_factory=set)
    """Distinct sizes above LARGE, at most MOST_SIZES."""
    kept: int = 0
    kept_size: int = 0
    """Allocations, and their bytes, that are live at the end."""
    kept_stretches: set[int] = field(default_factory=set)
    """Tenths of the trace in which the kept ones were allocated."""
    optimizer: bool = False
    """Whether torch.optim allocated for it."""
    late: bool = False
    """Whether blocks above LARGE had been freed before its first allocation: it fills their gaps."""


Frames = Sequence[Any]
"""Of one stack, innermost first, as torch records them."""


class Moment(NamedTuple):
    events: int
    """Number of events before it."""
    time: float | None
    """Seconds since the first event."""
    found: Fragmentation

    @property
    def active(self) -> int:
        return self.found.active

    @property
    def reserved(self) -> int:
        return self.found.reserved

    @property
    def room(self) -> int | None:
        """What the process could still reserve, after returning all it can: the margin at this moment."""
        return None if self.found.headroom is None else self.found.headroom + self.found.reclaimable


@dataclass(frozen=True)
class Temporary:
    """The largest block that is live at the peak for a short time only."""

    stack: Stack
    size: int


@dataclass(frozen=True)
class Profile:
    device: int
    heap: Heap
    """At the worst moment; without a trace, the heap of the snapshot."""
    driver: Driver
    """At that moment."""
    sites: Mapping[int, Stack]
    """Call site of the live blocks by address, at that moment."""
    frames: Mapping[int, Frames]
    """Torch's frames of these blocks by address, as far as recorded."""
    moments: Sequence[Moment]
    """In order; without a trace, the snapshot alone."""
    worst: Moment
    """The highest ratio, if the driver is known and more than 5 % of the limit is free; else most stranded bytes.

    Of equal moments the one with most active bytes.
    """
    peak: Moment
    """Most active bytes."""
    peak_reserved: int
    events: int = 0
    stats: Mapping[Stack, SiteStats] = field(default_factory=dict)
    empty_caches: int = 0
    emptied: int = 0
    """Bytes that calls of empty_cache returned."""
    ooms: int = 0
    temporary: Temporary | None = None
    others: int | None = None
    """Bytes of other processes on the device; None if unknown."""
    note: str = ""
    """What could not be read."""

    @property
    def peak_fragmentation(self) -> float:
        """1 - peak active / peak reserved."""
        return 1 - self.peak.active / self.peak_reserved if self.peak_reserved else 0.0


def profile_heap(heap: Heap, driver: Driver, frames: Mapping[int, Frames]) -> Profile:
    """Return the profile of a snapshot without a trace; `frames` has those of the live blocks by address."""
    moment = Moment(0, None, measure(heap, driver))
    device = heap.devices[0] if heap.devices else 0
    return Profile(device, heap, driver, call_sites_of(frames), frames, [moment], moment, moment, moment.reserved)


def profile_trace(
    entries: Sequence[Mapping[str, Any]] | None,
    events: Sequence[Event],
    end: Heap,
    driver: Driver,
    frames: Mapping[int, Frames],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """Return the profile of a device's trace that ends in the heap `end`.

    entries: torch's trace entries, which have stacks and times; None if there are only events. driver: its figures at
    the end. frames: those of the blocks that are live at the end. Raises BadInput if trace and heap do not fit.
    """
    positions = entry_positions(events, entries) if entries is not None else range(len(events))
    chosen, peak_reserved = _choose(events, end)
    heaps = heaps_at(events, end, chosen, progress)
    reserved_end = sum(segment.size for segment in end.segments)
    moments, drivers = [], {}
    for moment in chosen:
        heap = heaps[moment]
        reserved = sum(segment.size for segment in heap.segments)
        free = None if driver.free is None else max(0, driver.free + reserved_end - reserved)
        drivers[moment] = replace(driver, free=free)
        time = _seconds(entries, positions, moment)
        moments.append(Moment(moment, time, measure(heap, drivers[moment])))
    worst = max(moments, key=_badness)
    peak = max(moments, key=lambda moment: moment.active)
    walk = _Walk(events, entries, positions, end, worst.events, peak.events)
    known = walk.frames_at_worst
    if worst.events == len(events):
        known = {**known, **frames}
    return Profile(
        device=end.devices[0] if end.devices else 0,
        heap=heaps[worst.events],
        driver=drivers[worst.events],
        sites=call_sites_of(known),
        frames=known,
        moments=moments,
        worst=worst,
        peak=peak,
        peak_reserved=peak_reserved,
        events=len(events),
        stats=walk.stats,
        empty_caches=walk.empty_caches,
        emptied=walk.emptied,
        ooms=walk.ooms,
        temporary=walk.temporary,
    )


def _badness(moment: Moment) -> tuple[float, int, int]:
    found = moment.found
    significant = found.limit is None or (found.free_total or 0) > NEARLY_FULL * found.limit
    return (found.ratio or 0.0) if significant else 0.0, found.stranded, moment.active


def frames_of_blocks(segments: Sequence[Mapping[str, Any]], device: int) -> dict[int, Frames]:
    """Return the frames of each live block that has some, by address, from torch's raw segments."""
    found: dict[int, Frames] = {}
    for segment in segments:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != INACTIVE and (frames := frames_of(block)):
                found[block.get("address", address)] = frames
            address += block["size"]
    return found


def call_sites_of(frames: Mapping[int, Frames]) -> dict[int, Stack]:
    """Return the call sites by address. Torch shares the frames of equal stacks: each is read once."""
    known: dict[int, Stack] = {}
    sites = {}
    for address, each in frames.items():
        if (stack := known.get(id(each))) is None:
            stack = known[id(each)] = call_site(each)
        sites[address] = stack
    return sites


def entry_positions(events: Sequence[Event], entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the index of the trace entry of each event; marks that the parser added have that of the next one."""
    positions, at = [], 0
    for event in events:
        if event.action != EMPTY_CACHE:
            while entries[at]["action"] != event.action:
                at += 1
        positions.append(at)
        at += event.action != EMPTY_CACHE
    return positions


def _seconds(entries: Sequence[Mapping[str, Any]] | None, positions: Sequence[int], moment: int) -> float | None:
    if not entries:
        return None
    first, last = entries[0].get("time_us"), entries[positions[max(0, moment - 1)]].get("time_us")
    return (last - first) / 1e6 if isinstance(first, int) and isinstance(last, int) else None


def _choose(events: Sequence[Event], end: Heap) -> tuple[list[int], int]:
    """Return where most memory is active in each stretch, the end included, and the peak of reserved memory."""
    stretch = max(1, -(-len(events) // STRETCHES))
    best: dict[int, tuple[int, int]] = {}
    active = reserved = most_reserved = 0
    for index, event in enumerate(events):
        if event.action == ALLOC:
            active += event.size
        elif event.action == FREE_COMPLETED:
            active -= event.size
        elif event.action in GROWS:
            reserved += event.size
            most_reserved = max(most_reserved, reserved)
        elif event.action in SHRINKS:
            reserved -= event.size
        number = index // stretch
        if number not in best or active > best[number][0]:
            best[number] = (active, index + 1)
    begin = sum(segment.size for segment in end.segments) - reserved
    return sorted({*(moment for _, moment in best.values()), len(events)}), begin + most_reserved


class _Walk:
    """One pass over the trace that collects what each call site does."""

    def __init__(
        self,
        events: Sequence[Event],
        entries: Sequence[Mapping[str, Any]] | None,
        positions: Sequence[int],
        end: Heap,
        worst: int,
        peak: int,
    ) -> None:
        self.stats: dict[Stack, SiteStats] = {}
        self.empty_caches = self.emptied = self.ooms = 0
        self.frames_at_worst: dict[int, Frames] = {}
        self.temporary: Temporary | None = None
        self._freed_large = False
        stacks: dict[int, tuple[Stack, bool]] = {}
        live: dict[int, tuple[Stack, int, int]] = {}
        at_peak: dict[int, tuple[Stack, int, int]] = {}
        at_worst: dict[int, tuple[Stack, int, int]] = {}
        short = max(64, int(SHORT * len(events)))
        emptying = False
        for index, event in enumerate(events):
            if index == worst:
                at_worst = dict(live)
            if index == peak:
                at_peak = dict(live)
            action = event.action
            if action == ALLOC:
                frames = entries[positions[index]].get("frames") or () if entries is not None else ()
                if (known := stacks.get(id(frames))) is None:
                    known = stacks[id(frames)] = call_site(frames), _is_optimizer(frames)
                self._allocate(known, event)
                live[event.address or 0] = known[0], event.size, index
            elif action == FREE_COMPLETED:
                self._freed_large = self._freed_large or event.size > LARGE
                begun = live.pop(event.address or 0, None)
                if begun is not None and event.address in at_peak and at_peak[event.address] == begun:
                    self._end_of_temporary(begun, index, short)
            elif action == EMPTY_CACHE:
                self.empty_caches += 1
            elif action == OOM:
                self.ooms += 1
            if action in SHRINKS and (emptying or (index and events[index - 1].action == EMPTY_CACHE)):
                self.emptied += event.size
                emptying = True
            else:
                emptying = False
        if worst >= len(events):
            at_worst = live
        if entries is not None:
            for address, (_, _, index) in at_worst.items():
                if frames := entries[positions[index]].get("frames"):
                    self.frames_at_worst[address] = frames
        for stack, size, index in live.values():
            stats = self.stats[stack]
            stats.kept += 1
            stats.kept_size += size
            stats.kept_stretches.add(10 * index // max(1, len(events)))

    def _allocate(self, known: tuple[Stack, bool], event: Event) -> None:
        stats = self.stats.get(known[0])
        if stats is None:
            stats = self.stats[known[0]] = SiteStats(late=self._freed_large)
        stats.count += 1
        stats.size += event.size
        stats.optimizer = stats.optimizer or known[1]
        if event.size <= LARGE:
            stats.small += 1
        elif len(stats.sizes) < MOST_SIZES:
            stats.sizes.add(event.size)

    def _end_of_temporary(self, begun: tuple[Stack, int, int], index: int, short: int) -> None:
        stack, size, start = begun
        if index - start <= short and (self.temporary is None or size > self.temporary.size):
            self.temporary = Temporary(stack, size)


def _is_optimizer(frames: Sequence[Any]) -> bool:
    return any("torch/optim/" in str(frame.get("filename", "")) for frame in frames)
