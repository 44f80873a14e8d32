"""A device over its trace: quantities at chosen moments, what each call site allocated, and the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ...errors import BadInput
from ..allocatable import Driver
from ..call_sites import Stack, call_site, frames_of
from ..fragmentation import Fragmentation, measure
from ..heap import INACTIVE, Heap
from .columns import Trace
from .events import ALLOC, EMPTY_CACHE, FREE_COMPLETED, OOM, SHRINKS
from .history import heaps_at

STRETCHES = 32
"""The number of equal stretches of the trace; each is measured once, where most memory is active."""
NEARLY_FULL = 0.05
"""Free share of the limit below which the ratio is not meaningful."""
LARGE = 1 << 20
SHORT = 0.02
"""Share of the trace below which a block is temporary."""


@dataclass
class SiteStats:
    """What one call site allocated in the trace; the sums are for when all of it was read."""

    counts: dict[int, int] = field(default_factory=dict)
    """Allocations by size."""
    kept: int = 0
    kept_size: int = 0
    """Allocations, and their bytes, that are live at the end."""
    kept_stretches: set[int] = field(default_factory=set)
    """Tenths of the trace in which the kept ones were allocated."""
    optimizer: bool = False
    """Whether torch.optim allocated for it."""
    late: bool = False
    """Whether blocks above LARGE had been freed before its first allocation: it fills their gaps."""

    @cached_property
    def count(self) -> int:
        return sum(self.counts.values())

    @cached_property
    def size(self) -> int:
        return sum(size * count for size, count in self.counts.items())

    @cached_property
    def small(self) -> int:
        """Allocations of at most LARGE bytes."""
        return sum(count for size, count in self.counts.items() if size <= LARGE)

    @cached_property
    def sizes(self) -> int:
        """Distinct sizes above LARGE."""
        return sum(size > LARGE for size in self.counts)


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
    def reservable(self) -> int | None:
        """Bytes that the process could still reserve, after returning all it can; None is unknown."""
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
    def has_stacks(self) -> bool:
        """Whether a stack was recorded, of a live block or of an allocation in the trace."""
        return bool(self.frames) or any(self.stats)

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
    trace: Trace,
    end: Heap,
    driver: Driver,
    frames: Mapping[int, Frames],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """Return the profile of a device's trace that ends in the heap `end`.

    driver: its figures at the end. frames: those of the blocks that are live at the end. Raises BadInput if trace and
    heap do not fit.
    """
    chosen, peak_reserved = _choose(trace, end)
    heaps = heaps_at(trace, end, chosen, progress)
    reserved_end = sum(segment.size for segment in end.segments)
    moments, drivers = [], {}
    for moment in chosen:
        heap = heaps[moment]
        reserved = sum(segment.size for segment in heap.segments)
        free = None if driver.free is None else max(0, driver.free + reserved_end - reserved)
        drivers[moment] = replace(driver, free=free)
        time = None if trace.times is None else (trace.times[max(0, moment - 1)] - trace.times[0]) / 1e6
        moments.append(Moment(moment, time, measure(heap, drivers[moment])))
    worst = max(moments, key=_badness)
    peak = max(moments, key=lambda moment: moment.active)
    walk = _Walk(trace, worst.events, peak.events)
    known = walk.frames_at_worst
    if worst.events == len(trace):
        known = {**known, **frames}
    empty_caches, emptied = _empty_caches(trace)
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
        events=len(trace),
        stats=walk.stats,
        empty_caches=empty_caches,
        emptied=emptied,
        ooms=sum(trace.actions[index] is OOM for index in trace.others),
        temporary=walk.temporary,
    )


def _badness(moment: Moment) -> tuple[float, int, int]:
    found = moment.found
    significant = found.limit is None or (found.free_total or 0) > NEARLY_FULL * found.limit
    return (found.ratio or 0.0) if significant else 0.0, found.stranded, moment.active


def frames_of_blocks(segments: Sequence[Mapping[str, Any]], device: int) -> dict[int, Frames]:
    """Return the frames of each live block that has some, by address, from torch's raw segments. Raises BadInput."""
    found: dict[int, Frames] = {}
    for segment in segments:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != INACTIVE and (frames := _frames_of(block)):
                found[block.get("address", address)] = frames
            address += block["size"]
    return found


def _frames_of(block: Mapping[str, Any]) -> Sequence[Any]:
    try:
        frames = frames_of(block)
        if isinstance(frames, (list, tuple)) and {dict}.issuperset(map(type, frames)):
            return frames
    except (AttributeError, LookupError, TypeError):
        pass
    raise BadInput("the stack of a block does not have torch's form")


def call_sites_of(frames: Mapping[int, Frames]) -> dict[int, Stack]:
    """Return the call sites by address. Torch shares the frames of equal stacks: each is read once."""
    known: dict[int, Stack] = {}
    sites = {}
    for address, each in frames.items():
        if (stack := known.get(id(each))) is None:
            stack = known[id(each)] = call_site(each)
        sites[address] = stack
    return sites


def _choose(trace: Trace, end: Heap) -> tuple[list[int], int]:
    """Return where most memory is active in each stretch, the end included, and the peak of reserved memory."""
    active = trace.active()
    stretch = max(1, -(-len(trace) // STRETCHES))
    moments = {len(trace)}
    for first in range(0, len(trace), stretch):
        part = active[first : first + stretch]
        moments.add(first + part.index(max(part)) + 1)
    reserved = [size for _, size in trace.reserved()] or [0]
    begin = sum(segment.size for segment in end.segments) - reserved[-1]
    return sorted(moments), begin + max(0, *reserved)


def _empty_caches(trace: Trace) -> tuple[int, int]:
    """Return how often empty_cache was called, and the bytes that it returned."""
    calls = emptied = following = 0
    for index in trace.others:
        if trace.actions[index] is EMPTY_CACHE:
            calls, following = calls + 1, index + 1
        elif index == following and trace.actions[index] in SHRINKS:
            emptied, following = emptied + trace.sizes[index], index + 1
    return calls, emptied


class _Walk:
    """One pass over the trace that collects what each call site does."""

    def __init__(self, trace: Trace, worst: int, peak: int) -> None:
        self.stats: dict[Stack, SiteStats] = {}
        self._trace = trace
        self._stats: dict[tuple[int, ...], SiteStats] = {}
        """By the identities of a stack's frames: torch shares frames, but seldom the lists of them."""
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._freed_large = False
        live: dict[int, int] = {}
        """The event that allocated the block at an address."""
        at_worst = at_peak = live
        begin = 0
        for moment in sorted({worst, peak, len(trace)}):
            self._read(begin, moment, live)
            begin = moment
            if moment == worst:
                at_worst = live.copy()
            if moment == peak:
                at_peak = live.copy()
        self.frames_at_worst: dict[int, Frames] = {
            address: frames for address, index in at_worst.items() if (frames := trace.frames[index])
        }
        self.temporary = self._largest_temporary(at_peak, peak)
        for index in live.values():
            stats = self._stats[tuple(map(id, trace.frames[index]))]
            stats.kept += 1
            stats.kept_size += trace.sizes[index]
            stats.kept_stretches.add(10 * index // max(1, len(trace)))

    def _read(self, first: int, last: int, live: dict[int, int]) -> None:
        trace, known = self._trace, self._counts
        columns = (each[first:last] for each in (trace.actions, trace.addresses, trace.sizes, trace.frames))
        for index, action, address, size, frames in zip(range(first, last), *columns):
            if action is ALLOC:
                stack = tuple(map(id, frames))
                if stack not in known:
                    self._stats[stack] = self._stats_of(frames)
                    known[stack] = self._stats[stack].counts
                counts = known[stack]
                counts[size] = counts.get(size, 0) + 1
                live[address] = index
            elif action is FREE_COMPLETED:
                live.pop(address, None)
                if size > LARGE:
                    self._freed_large = True

    def _stats_of(self, frames: Frames) -> SiteStats:
        try:
            stats = self.stats.setdefault(call_site(frames), SiteStats(late=self._freed_large))
            stats.optimizer = stats.optimizer or _is_optimizer(frames)
        except (AttributeError, KeyError):
            raise BadInput("a stack does not have torch's form") from None
        return stats

    def _largest_temporary(self, at_peak: Mapping[int, int], peak: int) -> Temporary | None:
        trace, largest = self._trace, None
        short = max(64, int(SHORT * len(trace)))
        waiting = dict(at_peak)
        for index in range(peak, min(peak + short, len(trace))):
            if trace.actions[index] is FREE_COMPLETED:
                begun = waiting.pop(trace.addresses[index], None)
                if begun is None or index - begun > short:
                    continue
                if largest is None or trace.sizes[begun] > trace.sizes[largest]:
                    largest = begun
        return None if largest is None else Temporary(call_site(trace.frames[largest]), trace.sizes[largest])


def _is_optimizer(frames: Sequence[Any]) -> bool:
    return any("torch/optim/" in str(frame.get("filename", "")) for frame in frames)
