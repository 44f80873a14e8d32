"""A process sample: what a training process publishes, as one line of JSON.

The file is replaced in one step, so a reader sees one consistent sample. `schema` is the version of these records: a
reader refuses a newer one (NewerVersion) and ignores unknown keys, so agent and sidecar may be of different releases.
An unknown figure is None, never 0 or -1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated

from ..model.fragmentation import Fragmentation
from . import codec as json_record
from .codec import Most
from .defragmentation import Defragmentations

SCHEMA = 1
MAX_BYTES = 4 << 20  # an agent writes no larger file
MOMENTS = ("boundary", "peak", "timer")
"""When a snapshot was taken: at the end of an optimizer step, at a step's memory peak, or by the clock."""

# Far above what an agent writes. They bound what a broken or forged file adds to a scrape or a page.
DEVICES = 32
SNAPSHOTS = 4
CAUSES = 16
SOURCES = 64
STACKS = 16
FRAMES = 16


@dataclass(frozen=True)
class Identity:
    """`start` is in seconds of the system clock; pid and start together are unique on a host."""

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
    """Torch's own counters of one pool, in bytes; cheap, so newer than the snapshot."""

    allocated: int
    active: int
    requested: int
    reserved: int
    inactive_split: int


@dataclass(frozen=True)
class Counters:
    """Events since the process started; they never decrease, even if the user resets torch's statistics."""

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
    """One reading of an allocator without torch's two pools. What it does not report is None.

    In addition to Totals, so that older readers ignore it.
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
        """free_total / largest_allocatable; None if one is unknown or nothing can be allocated."""
        if self.free_total is None or not self.largest_allocatable:
            return None
        return self.free_total / self.largest_allocatable


@dataclass(frozen=True)
class DriverReading:
    """cudaMemGetInfo in the process."""

    time: float
    free: int
    size: int


@dataclass(frozen=True)
class Snapshot:
    """A measured heap; `at` is one of MOMENTS, `duration` is how many seconds it stalled the process."""

    time: float
    at: str
    duration: float
    measured: Fragmentation


@dataclass(frozen=True)
class Ooms:
    """The out-of-memory errors of one device since the process started."""

    causes: Annotated[dict[str, int], Most(CAUSES)] = field(default_factory=dict)
    """By model.verdict.Cause; 0 for a cause that has not occurred."""
    last_time: float | None = None
    last_requested: int | None = None
    """Bytes that the allocator asked the driver for."""


@dataclass(frozen=True)
class GrowingStack:
    """A stack whose live memory grew between two snapshots, in bytes.

    Its frames are `file:line function`, innermost first.
    """

    grown: int
    blocks: int
    """By how many live blocks it grew."""
    frames: Annotated[tuple[str, ...], Most(FRAMES)]


@dataclass(frozen=True)
class Leak:
    """Growth of allocated memory in bytes per `unit` (step, second). Rate 0: no leak was detected."""

    unit: str
    rate: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """`low` to `high` is the rate's 99 % interval."""
    begin: float = 0.0
    end: float = 0.0
    """The observed range, in steps or in seconds of the agent's life."""
    stacks: Annotated[tuple[GrowingStack, ...], Most(STACKS)] = ()
    """The fastest growing stacks; empty unless the user records the allocator's history."""


@dataclass(frozen=True)
class DeviceSample:
    """One device of one process. `snapshots` has the latest of each moment."""

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
    """None if the framework does not report them."""
    sums: Sums | None = None
    """Instead of `totals`, for an allocator without torch's two pools."""
    leak: Leak | None = None
    """None until enough data is collected."""
    framework: str | None = None
    framework_version: str | None = None
    """For a second framework in the process; None: the one in its identity."""
    defragmentations: Defragmentations | None = None
    """None before the first."""

    @property
    def reserved(self) -> int | None:
        """Bytes the allocator holds; None if unknown."""
        if self.totals is not None:
            return self.totals.large.reserved + self.totals.small.reserved
        return self.sums.reserved if self.sums else None


@dataclass(frozen=True)
class AgentHealth:
    """The agent's cost and errors since the process started."""

    stall_seconds: Annotated[dict[str, float], Most(CAUSES)] = field(default_factory=dict)
    """By cause (stats, snapshot, wait): how long the process's Python was stalled."""
    errors: Annotated[dict[str, int], Most(SOURCES)] = field(default_factory=dict)
    """By source: errors that were caught."""
    recordings: Annotated[dict[str, int], Most(CAUSES)] = field(default_factory=dict)
    """By result: recorded steps (see agent.step_recorder)."""


@dataclass(frozen=True)
class ProcessSample:
    """What one process publishes at one time."""

    identity: Identity
    time: float
    devices: Annotated[tuple[DeviceSample, ...], Most(DEVICES)] = ()
    steps: int | None = None
    """Optimizer steps since the agent started; None without a step hook."""
    health: AgentHealth = AgentHealth()
    schema: int = SCHEMA


def encode(sample: ProcessSample) -> bytes:
    """Return one line of JSON. Raises ValueError for an infinite figure or NaN.

    `vars` is six times faster than `asdict`, and this runs every second in a training process.
    """
    text = json.dumps(sample, default=vars, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"  # environment variables may contain invalid text


def decode(data: bytes) -> ProcessSample:
    """Raises BadInput for an invalid sample, NewerVersion for one of a newer gpufrag."""
    return json_record.decode(ProcessSample, data, "sample", SCHEMA, MAX_BYTES)
