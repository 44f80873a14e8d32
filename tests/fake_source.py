"""A source with scripted answers, and clocks that are set by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gpufrag.agent.schedule import Clocks
from gpufrag.agent.sources import Capture, DeviceFacts, DeviceReading, Fault, Live
from gpufrag.model.call_sites import Sites
from gpufrag.model.heap import Heap
from gpufrag.model.step import StepEvents
from gpufrag.wire.defragmentation import Defragmentations, DefragmentOptions, Result
from gpufrag.wire.sample import Counters, DriverReading, PoolTotals, Totals
from helpers import golden_case_named

RESULT = Result(
    0, True, 5_000_000, 7, 0.25, 0.3, 8.0, 1.0, 1_000_000, 8_000_000, 8_000_000, 7_000_000, 0, 0, {"ipc": 2}
)
"""What a defragmentation returned."""


@dataclass
class HandClock:
    """All of an agent's clocks; only `tick` moves them."""

    now: float = 1_000_000.0
    cpu: float = 0.0

    def tick(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clocks(self) -> Clocks:
        return Clocks(wall=lambda: self.now, monotonic=lambda: self.now, cpu=lambda: self.cpu)


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

    def history_in_use(self) -> bool:
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
class RecordingSource(ScriptedSource):
    """One that records events: by default none happen, so a step's peak is the heap at its end."""

    refusal: str | None = None
    events: StepEvents = field(default_factory=lambda: StepEvents((), (), (), ()))
    count: int | None = 0
    complete: bool = True
    underway: bool = False
    calls: list[str] = field(default_factory=list)

    def start_recording(self, max_events: int) -> str | None:
        self.calls.append("start")
        self.underway = self.refusal is None
        return self.refusal

    def recorded_events(self) -> int | None:
        return self.count

    def finish_recording(self, read: bool) -> Capture | None:
        self.calls.append("read" if read else "drop")
        self.underway = False
        capture = self.capture() if read else None
        return capture and replace(capture, events=lambda: {0: self.events}, complete=self.complete)


@dataclass
class TracingSource(RecordingSource):
    """One that records steps for the user."""

    snapshot: dict[str, object] | None = field(default_factory=lambda: {"segments": [], "device_traces": [[]]})

    def start_trace(self, max_events: int, stacks: bool) -> str | None:
        self.calls.append("trace with stacks" if stacks else "trace")
        return self.refusal

    def finish_trace(self, read: bool) -> dict[str, object] | None:
        self.calls.append("read trace" if read else "drop trace")
        return self.snapshot if read else None


@dataclass
class LiveSource(ScriptedSource):
    """One that reports what is live, and takes `cost` seconds for it."""

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


@dataclass
class MovingSource(RecordingSource):
    """One whose memory can be moved; `failure` is raised instead."""

    orders: list[DefragmentOptions] = field(default_factory=list)
    failure: BaseException | None = None
    results: tuple[Result, ...] = (RESULT,)

    def defragment(self, options: DefragmentOptions) -> tuple[Result, ...]:
        self.orders.append(options)
        if self.failure is not None:
            raise self.failure
        return self.results

    def defragmented(self, device: int) -> Defragmentations | None:
        if not self.orders:
            return None
        return Defragmentations(5_000_000, 0.25, {"private-pool": 3}, 1_000_000, 8_000_000)


@dataclass
class StackedSource(LiveSource):
    """One that records stacks: `copies` has the live memory by call site, one for each time it is asked."""

    copies: list[Sites | None] = field(default_factory=list)
    stacked: list[str] = field(default_factory=list)
    refuses: bool = False

    def start_stacks(self) -> bool:
        self.stacked.append("start")
        return not self.refuses

    def allocated_since(self, stop: bool) -> Callable[[], Sites] | None:
        self.stacked.append("stop" if stop else "copy")
        sites = self.copies.pop(0)
        return None if sites is None else lambda: sites
