"""A simulated fleet with faults: four jobs that replay recorded traces on the simulated allocator.

Everything that happens is in the traces; only the clock is invented: a trace of seconds takes an hour and a half.
`exposition` is what Prometheus would have scraped in that time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path

from gpufrag.metrics import families
from gpufrag.metrics.view import CollectorResult, DeviceView, Fleet, ProcessView, RankView
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import DEFAULT_POOL, Heap
from gpufrag.model.settings import Settings, parse_recorded
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.trace.events import parse_rows
from gpufrag.model.trace.program import MALLOC, Program, Replay
from gpufrag.model.trace.reading import read_program
from gpufrag.model.verdict import Cause
from gpufrag.wire.sample import (
    AgentHealth,
    Counters,
    DeviceSample,
    DriverReading,
    Identity,
    Leak,
    Ooms,
    PoolTotals,
    ProcessSample,
    Snapshot,
    Totals,
)

TRACES = Path(__file__).parents[2] / "tests" / "golden"
START = 1_764_000_000
SCRAPE = 60
LENGTH = 90 * 60
END = START + LENGTH
GIB = 1 << 30
CONTEXT = 530 << 20
SNAPSHOT_INTERVAL = 10
LOOKS_PER_SCRAPE = 3
"""How often the heap is inspected between two scrapes to find its peak."""


@dataclass(frozen=True)
class Trace:
    program: Program
    settings: Settings
    conf: str
    cap: int


@cache
def trace(name: str) -> Trace:
    case = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    settings = parse_recorded({**case["settings"], "torch": case["torch"]})
    program = read_program(parse_rows(case["events"], case["events_columns"]), settings, case["cap_bytes"])
    return Trace(program, settings, case["conf"], case["cap_bytes"])


@dataclass(frozen=True)
class Life:
    """One process of a rank: its trace, when it runs (seconds since START), and the share of the trace it replays."""

    trace: str
    begin: int
    end: int = LENGTH
    share: float = 1.0


@dataclass(frozen=True)
class Place:
    """A rank's device, and what the driver shows of it."""

    uuid: str
    size: int
    others: int | None = None
    """Bytes of other processes; None if the driver shows no processes."""
    name: str = "NVIDIA H200"
    mig_profile: str | None = None


@dataclass(frozen=True)
class Job:
    namespace: str
    name: str
    lives: tuple[tuple[Life, ...], ...]
    """By rank: its processes, one after the other."""
    places: tuple[Place, ...]
    step: float = 2.0
    """Seconds per optimizer step."""


def _slice(number: int) -> Place:
    return Place(f"MIG-a{number:07d}", 18 * GIB, None, "NVIDIA H200 MIG 1g.18gb", "1g.18gb")


def _gpu(number: int, others: int = 0) -> Place:
    return Place(f"GPU-c{number:07d}", 12 * GIB, others, "NVIDIA GeForce RTX 3060")


MISCONFIGURED = 2
"""The rank of feature-cache that starts without PYTORCH_CUDA_ALLOC_CONF, until a restart."""
LEAKING = ("sequence-sweep", 1)
"""The job and rank with a leak, which no recorded trace has."""
JOBS = (
    Job(
        "vision",
        "small-decoder",
        tuple((Life("train-cap4", 120, share=1 - 0.04 * rank),) for rank in range(4)),
        (_gpu(0), _gpu(1), _gpu(2, others=3 * GIB), _gpu(3)),
        1.5,
    ),
    Job(
        "recsys",
        "feature-cache",
        tuple(
            (
                Life("cache-default" if rank == MISCONFIGURED else "cache-maxsplit64", 60, 3660, share=1 - 0.05 * rank),
                Life("cache-maxsplit64", 3780, share=0.4 + 0.02 * rank),
            )
            for rank in range(4)
        ),
        tuple(_slice(number) for number in range(4)),
        3.0,
    ),
    Job(
        "research",
        LEAKING[0],
        tuple((Life("churn-default", 300, share=1 - 0.1 * rank),) for rank in range(2)),
        (_gpu(4), _gpu(5)),
        2.5,
    ),
    Job(
        "speech",
        "streaming-asr",
        tuple((Life("streams-default", 0, share=1 - 0.2 * rank),) for rank in range(2)),
        (_slice(4), _slice(5)),
        1.0,
    ),
)
SILENT = ("speech", range(4200, 4500))
"""The namespace whose target is down, and when."""


class RecordingAllocator(Allocator):
    """Keeps the last failed request and the heap at that moment."""

    failed: tuple[int, Heap, Driver] | None = None

    def malloc(self, request: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        block = super().malloc(request, stream, pool)
        if block is None:
            self.failed = self.settings.segment_size(request), self.heap(), self.driver
        return block


@dataclass
class Process:
    """One process of one rank, replayed up to a time."""

    life: Life
    job: Job
    rank: int
    pid: int
    largest_request: int | None = None
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    stall: float = 0.0
    ooms: Ooms = field(default_factory=lambda: Ooms({cause.value: 0 for cause in Cause}))

    def __post_init__(self) -> None:
        self.place = self.job.places[self.rank]
        self._trace = trace(self.life.trace)
        driver = Driver(self.place.size - CONTEXT - (self.place.others or 0), self.place.size, self._trace.cap)
        self._allocator = RecordingAllocator(self._trace.settings, driver)
        self._replay = Replay(self._trace.program, self._allocator)

    @property
    def reserved(self) -> int:
        return self._allocator.reserved

    def play(self, now: int) -> None:
        """Replay up to `now` (seconds since START) and take the snapshots on the way."""
        total = len(self._trace.program.operations) * self.life.share
        span = self.life.end - self.life.begin
        begin = self._replay.position
        peak: tuple[int, Heap, Driver] | None = None
        for look in range(1, LOOKS_PER_SCRAPE + 1):
            at = now - self.life.begin - SCRAPE * (1 - look / LOOKS_PER_SCRAPE)
            before = self._allocator.counters.ooms
            self._replay.run(until=int(total * min(max(at, 0) / span, 1)))
            self._count_ooms(self._allocator.counters.ooms - before, START + self.life.begin + max(at, 0))
            if look < LOOKS_PER_SCRAPE and (peak is None or self._allocator.active > peak[0]):
                peak = self._allocator.active, self._allocator.heap(), self._allocator.driver
        assert peak is not None
        self._take("peak", START + now - 11, *peak[1:])
        heap = self._allocator.heap()
        self._take("boundary", START + now - 4, heap, self._allocator.driver)
        self.stall += SCRAPE / SNAPSHOT_INTERVAL * self.snapshots["boundary"].duration
        made = self._trace.program.operations[begin : self._replay.position]
        self.largest_request = max([operation.size for operation in made if operation.kind == MALLOC], default=None)

    def _take(self, at: str, time: float, heap: Heap, driver: Driver) -> None:
        blocks = sum(len(segment.sizes) for segment in heap.segments)
        self.snapshots[at] = Snapshot(time, at, 2e-4 + blocks * 1e-6, measure(heap, driver))

    def _count_ooms(self, failures: int, time: float) -> None:
        """All failures between two looks get the cause of the last one."""
        if self._allocator.failed and failures:
            requested, heap, driver = self._allocator.failed
            free = measure(heap, driver).free_total or 0
            cause = Cause.FRAGMENTATION if requested <= free else Cause.LIMIT if self._trace.cap else Cause.CAPACITY
            counts = {**self.ooms.causes, cause.value: self.ooms.causes[cause.value] + failures}
            self.ooms = Ooms(counts, time, requested)

    def sample(self, now: int) -> ProcessSample:
        lived, mig, allocator = now - self.life.begin, self.place.mig_profile is not None, self._allocator
        large, small = (PoolTotals(**allocator.totals(small=small)._asdict()) for small in (False, True))
        counters = Counters(**vars(allocator.counters))
        leaks = (self.job.name, self.rank) == LEAKING
        device = DeviceSample(
            device=0,
            backend="native",
            uuid=f"GPU-of-{self.place.uuid}" if mig else self.place.uuid,
            mig_uuid=self.place.uuid if mig else None,
            alloc_conf=self._trace.conf or None,
            driver_version="580.159.04",
            limit=self._trace.cap or None,
            totals=Totals(START + now - 1, large, small, allocator.peak_active, allocator.peak_reserved, counters),
            driver=DriverReading(START + now - 1, allocator.driver.free or 0, self.place.size),
            largest_recurring=self.largest_request,
            snapshots=tuple(self.snapshots.values()),
            ooms=self.ooms,
            leak=Leak("step", 1.2e6, 1.1e6, 1.4e6, 0, 400) if leaks else Leak("step"),
        )
        world = len(self.job.lives)
        identity = Identity(
            "node", self.pid, START + self.life.begin, self.rank, self.rank, world, "torch", "2.11.0+cu130"
        )
        health = AgentHealth(stall_seconds={"stats": 15e-6 * lived, "snapshot": self.stall})
        return ProcessSample(identity, START + now - 0.6, (device,), steps=int(lived / self.job.step), health=health)

    def view(self, now: int) -> RankView:
        alive = now < self.life.end or self.life.end == LENGTH
        shown = self.place.others is not None
        memory = {0: ProcessView(self.place.uuid, None, self.reserved + CONTEXT, CONTEXT)} if shown else {}
        return RankView(self.sample(min(now, self.life.end)), alive, memory)


def exposition() -> Iterator[str]:
    """Yield OpenMetrics lines: every scrape of every sidecar, with the labels that Prometheus adds."""
    pids = count(4001)
    for job in JOBS:
        ranks = [[Process(life, job, rank, next(pids)) for life in lives] for rank, lives in enumerate(job.lives)]
        for now in range(SCRAPE, LENGTH + 1, SCRAPE):
            target = {"namespace": job.namespace, "job": "gpufrag", "job_name": job.name}
            target["instance"] = f"{job.name}-0:9836"
            answers = not (job.namespace == SILENT[0] and now in SILENT[1])
            yield _line("up", target, float(answers), now)
            fleet = _fleet(job, ranks, now)
            for sample in (sample for family in families(fleet) for sample in family.samples if answers):
                yield _line(sample.name, {**target, **sample.labels}, sample.value, now)
    yield "# EOF\n"


def _fleet(job: Job, ranks: list[list[Process]], now: int) -> Fleet:
    views = []
    for process in (process for lives in ranks for process in lives):
        if process.life.begin < now <= process.life.end:
            process.play(now)
        if process.life.begin < now <= process.life.end + 600:
            views.append(process.view(now))
    devices = tuple(_device(place, lives, now, number) for number, (place, lives) in enumerate(zip(job.places, ranks)))
    nvml = job.places[0].others is not None
    result = CollectorResult(nvml, 0.004, None if nvml else "no NVML library")
    return Fleet(START + now, tuple(views), devices, {"folder": CollectorResult(True, 0.001), "nvml": result})


def _device(place: Place, lives: list[Process], now: int, number: int) -> DeviceView:
    own = sum(process.reserved + CONTEXT for process in lives if process.life.begin < now <= process.life.end)
    reserved = 300 << 20
    used = own + (place.others or 0)
    return replace(
        DeviceView(
            place.uuid, number, place.size, place.size - used - reserved, used, reserved, place.others, place.name
        ),
        driver_version="580.159.04",
        mig_profile=place.mig_profile,
    )


def _line(name: str, labels: dict[str, str], value: float, now: int) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value} {START + now}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
