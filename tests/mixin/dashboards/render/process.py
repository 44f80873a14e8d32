"""One process of the story: a recorded program on the simulated allocator, sampled as an agent would."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from gpufrag.agent.oom_counts import OomCounts
from gpufrag.agent.oom_look import Look, facts
from gpufrag.agent.sources import DeviceReading, Fault
from gpufrag.metrics.view import ProcessView, RankView
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import DEFAULT_POOL, Heap
from gpufrag.model.recurring import Recurrence, observe
from gpufrag.model.settings import Settings, parse_recorded
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.trace.events import parse_rows
from gpufrag.model.trace.program import Program, Replay
from gpufrag.model.trace.reading import read_program
from gpufrag.model.verdict import judge
from gpufrag.wire.sample import (
    AgentHealth,
    Counters,
    DeviceSample,
    DriverReading,
    Identity,
    Leak,
    PoolTotals,
    ProcessSample,
    Snapshot,
    Totals,
)
from helpers import golden_case_named

START = 1_764_000_000
SCRAPE = 60
LENGTH = 90 * 60
GIB = 1 << 30
CONTEXT = 530 << 20
SNAPSHOTS_EVERY = 10
LEAKING = "churn-default"
LOOKS = 3
"""How often an interval between two scrapes is looked into for its memory peak."""


@dataclass(frozen=True)
class Trace:
    """A recorded program, and how the allocator was set when it ran."""

    program: Program
    settings: Settings
    conf: str
    cap: int


@cache
def trace(name: str) -> Trace:
    case = golden_case_named(name).raw
    settings = parse_recorded(case["settings"])
    program = read_program(parse_rows(case["events"], case["events_columns"]), settings, case["cap_bytes"])
    return Trace(program, settings, case["conf"], case["cap_bytes"])


@dataclass(frozen=True)
class Life:
    """A process: from when to when it runs (seconds of the story), and how much of its trace it gets through."""

    trace: str
    begin: int
    end: int = LENGTH
    share: float = 1.0


@dataclass(frozen=True)
class Place:
    """A rank's device, and what the driver tells of it."""

    uuid: str
    size: int
    others: int | None = None
    """Held by a stranger; None where the driver shows no processes."""
    name: str = "NVIDIA H200"
    mig_profile: str | None = None


class Failing(Allocator):
    """Remembers the request that failed last, and how the heap was then."""

    failed: tuple[int, Heap, Driver] | None = None

    def malloc(self, request: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        block = super().malloc(request, stream, pool)
        if block is None:
            self.failed = self.settings.segment_size(request), self.heap(), self.driver
        return block


@dataclass
class Process:
    """One life of one rank, played on the simulated allocator up to a time of the story."""

    life: Life
    rank: int
    world: int
    place: Place
    step: float
    pid: int
    identity: Identity = field(init=False)
    recurrence: Recurrence = field(default_factory=Recurrence)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    held: float = 0.0
    """Seconds for which snapshots held the process."""

    def __post_init__(self) -> None:
        self._trace = trace(self.life.trace)
        driver = Driver(self.place.size - CONTEXT - (self.place.others or 0), self.place.size, self._trace.cap)
        self._allocator, self._ooms = Failing(self._trace.settings, driver), OomCounts()
        self._replay = Replay(self._trace.program, self._allocator)
        start = START + self.life.begin
        self.identity = Identity("node", self.pid, start, self.rank, self.rank, self.world, "torch", "2.11.0+cu130")

    @property
    def reserved(self) -> int:
        return self._allocator.reserved

    def play(self, now: int) -> None:
        """Up to `now`, a time of the story; takes the snapshots on the way."""
        total = len(self._trace.program.operations) * self.life.share
        span = self.life.end - self.life.begin
        peak: tuple[int, Heap, Driver] | None = None
        for look in range(1, LOOKS + 1):
            at = now - self.life.begin - SCRAPE * (1 - look / LOOKS)
            before = self._allocator.counters.ooms
            self._replay.run(until=int(total * min(max(at, 0) / span, 1)))
            self._explain(self._allocator.counters.ooms - before, START + self.life.begin + max(at, 0))
            if look < LOOKS and (peak is None or self._allocator.active > peak[0]):
                peak = self._allocator.active, self._allocator.heap(), self._allocator.driver
        assert peak is not None
        self._take("peak", START + now - 11, *peak[1:])
        heap = self._allocator.heap()
        self._take("boundary", START + now - 4, heap, self._allocator.driver)
        self.held += SCRAPE / SNAPSHOTS_EVERY * self.snapshots["boundary"].duration
        self.recurrence = observe(self.recurrence, heap, START + now)

    def _take(self, at: str, time: float, heap: Heap, driver: Driver) -> None:
        blocks = sum(len(segment.sizes) for segment in heap.segments)
        self.snapshots[at] = Snapshot(time, at, 2e-4 + blocks * 1e-6, measure(heap, driver))

    def _explain(self, failures: int, time: float) -> None:
        """What fails in one look fails of one cause."""
        if self._allocator.failed and failures:
            requested, heap, driver = self._allocator.failed
            measured, reading = measure(heap, driver), DriverReading(time, driver.free or 0, self.place.size)
            seen = Look(measured, DeviceReading(0, driver=reading), heap.settings.expandable_segments, None)
            cause = judge(facts(Fault(0, requested, reading.free), seen)).cause.value
            for _ in range(failures):
                self._ooms.add(0, cause, time, requested)

    def sample(self, now: int) -> ProcessSample:
        lived, mig = now - self.life.begin, self.place.mig_profile is not None
        stalls = {"stats": 15e-6 * lived, "snapshot": self.held}
        device = DeviceSample(
            device=0,
            backend="native",
            uuid=f"GPU-of-{self.place.uuid}" if mig else self.place.uuid,
            mig_uuid=self.place.uuid if mig else None,
            alloc_conf=self._trace.conf or None,
            driver_version="580.159.04",
            limit=self._trace.cap or None,
            totals=self._totals(START + now - 1),
            driver=DriverReading(START + now - 1, self._allocator.driver.free or 0, self.place.size),
            largest_recurring=self.recurrence.largest(START + now),
            snapshots=tuple(self.snapshots.values()),
            ooms=self._ooms.of(0),
            leak=self._leak(),
        )
        health = AgentHealth(stall_seconds=stalls)
        return ProcessSample(self.identity, START + now - 0.6, (device,), steps=int(lived / self.step), health=health)

    def _leak(self) -> Leak:
        """One rank of one job is told to keep a little more every step; no recorded program does."""
        leaks = self.rank == 1 and self.life.trace == LEAKING
        return Leak("step", 1.2e6, 1.1e6, 1.4e6, 0, 400) if leaks else Leak("step")

    def _totals(self, time: float) -> Totals:
        allocator = self._allocator
        large, small = (PoolTotals(**allocator.totals(small=small)._asdict()) for small in (False, True))
        counters = Counters(**vars(allocator.counters))
        return Totals(time, large, small, allocator.peak_active, allocator.peak_reserved, counters)

    def view(self, now: int) -> RankView:
        alive = now < self.life.end or self.life.end == LENGTH
        driver_tells = self.place.others is not None
        memory = {0: ProcessView(self.place.uuid, None, self.reserved + CONTEXT, CONTEXT)} if driver_tells else {}
        return RankView(self.sample(min(now, self.life.end)), alive, memory)
