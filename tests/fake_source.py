"""A source that is told what to answer, and clocks that are set by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gpufrag.agent.clocks import Clocks
from gpufrag.agent.peak import Level
from gpufrag.agent.sources import Capture, DeviceFacts, DeviceReading, Fault, Live
from gpufrag.model.call_sites import Sites
from gpufrag.model.heap import Heap
from gpufrag.wire.sample import Counters, DriverReading, PoolTotals, Totals
from helpers import golden_case_named


@dataclass
class HandClock:
    """All of an agent's clocks; they move only when told to."""

    now: float = 1_000_000.0
    cpu: float = 0.0

    def tick(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clocks(self) -> Clocks:
        return Clocks(wall=lambda: self.now, monotonic=lambda: self.now, cpu=lambda: self.cpu, sleep=self.tick)


@dataclass
class ScriptedSource:
    """A framework with one device whose heap is a recorded one."""

    heap: Heap = field(default_factory=lambda: golden_case_named("train-default").heap)
    free: int = 50_000_000_000
    size: int = 150_000_000_000
    held: float = 0.0
    waited: float = 0.0
    read_held: float = 0.0
    retries: int = 0
    history: bool = False
    graph: bool = False
    present: bool = True
    steps: bool = True
    ooms: int = 0
    captures: int = 0
    during_capture: Callable[[], None] = lambda: None
    on_step: Callable[[object], None] | None = None
    on_oom: Callable[[Fault], None] | None = None
    framework: str = "scripted"
    framework_version: str | None = "1.0"

    def facts(self, device: int) -> DeviceFacts:
        return DeviceFacts("native", "GPU-0")

    def read(self) -> Sequence[DeviceReading]:
        return [self._reading()] if self.present else []

    def capture(self) -> Capture | None:
        self.captures += 1
        self.during_capture()
        heap = self.heap
        return Capture(lambda: heap, [self._reading()], {0: self.size // 2}, "conf", self.held, self.waited)

    def recording(self) -> bool:
        return self.history

    def graph_underway(self) -> bool:
        return self.graph

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        self.on_step = on_step if self.steps else None
        return self.steps

    def watch_ooms(self, on_oom: Callable[[Fault], None]) -> bool:
        self.on_oom = on_oom
        return True

    def close(self) -> None:
        self.on_step = self.on_oom = None

    def fail(self, size: int) -> None:
        """What torch does in the thread whose request it cannot serve."""
        self.ooms += 1
        if self.on_oom is not None:
            self.on_oom(Fault(0, size, self.free))

    def step(self, optimizer: object = "optimizer") -> None:
        assert self.on_step is not None
        self.on_step(optimizer)

    def _reading(self) -> DeviceReading:
        reserved = sum(segment.size for segment in self.heap.segments)
        totals = Totals(
            1.0, PoolTotals(1, 1, 1, reserved, 0), PoolTotals(0, 0, 0, 0, 0), 1, 1, Counters(self.retries, self.ooms)
        )
        return DeviceReading(0, totals, DriverReading(1.0, self.free, self.size), self.read_held)


@dataclass
class FollowedSource(ScriptedSource):
    """One whose memory can be followed: after each boundary, each reading shows the next level of `curve`."""

    curve: Sequence[int] = (100, 300, 600, 900, 1000, 800, 400, 100)
    place: int = 0
    made: int = 0

    def step(self, optimizer: object = "optimizer") -> None:
        self.place = 0
        super().step(optimizer)

    def level(self, device: int) -> Level | None:
        active = self.curve[min(self.place, len(self.curve) - 1)]
        self.place += 1
        self.made += 1
        return Level(active, self.made, 0)


@dataclass
class LiveSource(ScriptedSource):
    """One that tells what is live, and takes `cost` seconds for it."""

    clock: HandClock = field(default_factory=HandClock)
    cost: float = 15e-6
    allocated: int = 1_000_000_000
    blocks: int | None = 500
    lives: int = 0
    places: Callable[[], Sites] | None = None

    def live(self, device: int) -> Live | None:
        self.lives += 1
        self.clock.tick(self.cost)
        return Live(self.allocated, self.blocks)

    def capture(self) -> Capture | None:
        capture = super().capture()
        return capture and replace(capture, sites=self.places)

    def keep(self, size: int) -> None:
        self.allocated += size
        self.blocks = self.blocks and self.blocks + 1
