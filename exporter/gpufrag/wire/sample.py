"""What crosses from a training process to its readers: one ProcessSample, as one line of JSON.

The file is replaced whole, so that a reader sees one consistent reading. `schema` is the version of this
module's records: a reader refuses a newer one (NewerVersion) and passes over keys that it does not know, so
that agent and sidecar need not be of one release. A figure that could not be read is None, never 0 or -1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated

from ..model.fragmentation import Fragmentation
from . import codec as json_record
from .codec import Most

SCHEMA = 1
MAX_BYTES = 4 << 20  # a file above this is not ours
MOMENTS = ("boundary", "peak", "timer")
"""When a snapshot was taken: at the end of an optimizer step, at a step's memory peak, or by the clock."""

# No agent comes near these. They bound what one file, a broken agent's or a forger's, can make of a scrape or a page.
DEVICES = 32
SNAPSHOTS = 4
CAUSES = 16
SOURCES = 64
STACKS = 16
FRAMES = 16


@dataclass(frozen=True)
class Identity:
    """Who the process is. `start` is its start, in seconds of the system clock; pid and start together are unique."""

    host: str
    pid: int
    start: float
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    framework: str | None = None
    framework_version: str | None = None


@dataclass(frozen=True)
class PoolTotals:
    """Torch's own counters of one pool, in bytes; cheap, so fresher than a snapshot."""

    allocated: int
    active: int
    requested: int
    reserved: int
    inactive_split: int


@dataclass(frozen=True)
class Counters:
    """Events since the process began; they never fall, even where the user resets torch's statistics."""

    alloc_retries: int | None = None
    ooms: int | None = None
    device_allocs: int | None = None
    device_frees: int | None = None
    stream_syncs: int | None = None


@dataclass(frozen=True)
class Totals:
    """One reading of the allocator's statistics. Peaks are since the process began or the user's last reset."""

    time: float
    large: PoolTotals
    small: PoolTotals
    peak_active: int
    peak_reserved: int
    counters: Counters = Counters()
    private_pool_reserved: int | None = None


@dataclass(frozen=True)
class Sums:
    """One reading of an allocator that does not tell torch's two pools. What it does not tell is None.

    Beside Totals, not in their place: a reader that does not know it passes over it.
    """

    time: float
    allocated: int | None = None
    active: int | None = None
    requested: int | None = None
    reserved: int | None = None
    inactive_split: int | None = None
    peak_active: int | None = None
    peak_reserved: int | None = None
    counters: Counters = Counters()
    free_cached: int | None = None
    largest_free_block: int | None = None
    free_total: int | None = None
    largest_allocatable: int | None = None

    @property
    def ratio(self) -> float | None:
        """free_total / largest_allocatable; None where one is not known, or nothing can be allocated."""
        if self.free_total is None or not self.largest_allocatable:
            return None
        return self.free_total / self.largest_allocatable


@dataclass(frozen=True)
class DriverReading:
    """cudaMemGetInfo as the process sees it."""

    time: float
    free: int
    size: int


@dataclass(frozen=True)
class Snapshot:
    """A measured heap: when, at which moment, and for how many seconds the process was held for it."""

    time: float
    at: str
    duration: float
    measured: Fragmentation


@dataclass(frozen=True)
class Ooms:
    """Out-of-memory errors of one device as the agent explained them, since the process began."""

    causes: Annotated[dict[str, int], Most(CAUSES)] = field(default_factory=dict)
    """By model.verdict.Cause; a cause that has not come up yet is there with 0."""
    last_time: float | None = None
    last_requested: int | None = None
    """Bytes, as the allocator asked the driver for them."""


@dataclass(frozen=True)
class GrowingStack:
    """A place in the program whose live memory grew between two snapshots: bytes, and `file:line function` of each
    frame, innermost first."""

    grown: int
    blocks: int
    """Live blocks that it has more."""
    frames: Annotated[tuple[str, ...], Most(FRAMES)]


@dataclass(frozen=True)
class Leak:
    """How allocated memory grows: bytes per `unit` (step, second). A rate of 0: enough was seen, and nothing grows."""

    unit: str
    rate: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """`low` to `high` is the 99 % interval of the rate."""
    begin: float = 0.0
    end: float = 0.0
    """The steps, or the seconds of the agent's life, between which it was seen to grow."""
    stacks: Annotated[tuple[GrowingStack, ...], Most(STACKS)] = ()
    """Where it grows most; empty unless the user records the allocator's history."""


@dataclass(frozen=True)
class DeviceSample:
    """One device of one process. `snapshots` holds the latest of each moment."""

    device: int
    backend: str
    uuid: str | None = None
    mig_uuid: str | None = None
    alloc_conf: str | None = None
    driver_version: str | None = None
    limit: int | None = None
    totals: Totals | None = None
    driver: DriverReading | None = None
    largest_recurring: int | None = None
    snapshots: Annotated[tuple[Snapshot, ...], Most(SNAPSHOTS)] = ()
    ooms: Ooms | None = None
    """None where the framework does not tell of them."""
    sums: Sums | None = None
    """What is told in place of `totals` by an allocator without torch's two pools."""
    leak: Leak | None = None
    """None as long as not enough is known."""
    framework: str | None = None
    framework_version: str | None = None
    """Of a second framework in the process; None: the process's own, as its identity has it."""

    @property
    def reserved(self) -> int | None:
        """All that the allocator holds; None where it does not tell."""
        if self.totals is not None:
            return self.totals.large.reserved + self.totals.small.reserved
        return self.sums.reserved if self.sums else None


@dataclass(frozen=True)
class AgentHealth:
    """What the agent cost and where it failed, since the process began."""

    stall_seconds: Annotated[dict[str, float], Most(CAUSES)] = field(default_factory=dict)
    """By cause (stats, snapshot, wait): how long the process's Python was held."""
    errors: Annotated[dict[str, int], Most(SOURCES)] = field(default_factory=dict)
    """By source: errors that were caught."""
    recordings: Annotated[dict[str, int], Most(CAUSES)] = field(default_factory=dict)
    """By result: recorded steps (see agent.step_recorder)."""


@dataclass(frozen=True)
class ProcessSample:
    """All that one process says at one time."""

    identity: Identity
    time: float
    devices: Annotated[tuple[DeviceSample, ...], Most(DEVICES)] = ()
    steps: int | None = None
    """Optimizer steps since the agent began; None where the process has no step hook."""
    health: AgentHealth = AgentHealth()
    schema: int = SCHEMA


def encode(sample: ProcessSample) -> bytes:
    """One line of JSON. Raises ValueError for a figure that is infinite or not a number.

    The encoder asks `vars` for each record: six times faster than `asdict`, every second in somebody's process.
    """
    text = json.dumps(sample, default=vars, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"  # an environment may hold bytes that are no text


def decode(data: bytes) -> ProcessSample:
    """Raises BadInput for what is not a sample, NewerVersion for one of a newer gpufrag."""
    return json_record.decode(ProcessSample, data, "sample", SCHEMA, MAX_BYTES)
