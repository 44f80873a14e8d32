"""What one scrape shows: ranks, devices, and the result of each source.

The sidecar fills it in (processes from the agents' files, devices from NVML or from the agents); `metrics` and the
page render it. Memory is in bytes, times are in seconds of the system clock. None is unknown and never shown as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..wire.oom_report import OomReport
from ..wire.sample import ProcessSample

STATES = ("alive", "dead")
"""Of a rank: its agent listens, or it has exited and its sample is kept."""


@dataclass(frozen=True)
class ProcessView:
    """One process on one device, as the driver reports it."""

    uuid: str | None = None
    """The GPU, as `GPU-…`."""
    mig_uuid: str | None = None
    """The MIG device of the process, as `MIG-…`; None on a whole GPU."""
    used: int | None = None
    """Everything the process has on the device: allocator, CUDA context, libraries."""
    context: int | None = None
    """used - reserved: memory outside the allocator."""


@dataclass(frozen=True)
class StepView:
    """One recorded step on one device, analysed. Sizes are bytes; `seconds` is the length of the step."""

    device: int
    time: float
    """When the step ended, in seconds of the system clock."""
    seconds: float
    peak_active: int
    largest_request: int
    allocations: int
    requested: int
    """The sum of all requests."""
    limit: int | None
    smallest_limits: dict[str, int]
    """The smallest memory limit under which the step succeeds, by allocator setting; `recorded` is its own."""


@dataclass(frozen=True)
class RankView:
    """One process with an agent. `memory` is by device ordinal, for the devices of `sample`."""

    sample: ProcessSample
    alive: bool = True
    memory: Mapping[int, ProcessView] = field(default_factory=dict)
    steps: tuple[StepView, ...] = ()
    layouts: Mapping[int, str] = field(default_factory=dict)
    """How the memory of each device lay in its latest snapshot or recording (model.layout.cells)."""

    @property
    def state(self) -> str:
        return "alive" if self.alive else "dead"


@dataclass(frozen=True)
class DeviceView:
    """A GPU, or one GPU instance of a GPU in MIG mode.

    A GPU in MIG mode is shown by its instances only, so that a sum over devices counts no byte twice.
    """

    uuid: str
    """`GPU-…`, or the `MIG-…` of the first compute instance of a GPU instance."""
    device: int
    """NVML's index of the GPU; without NVML, the ordinal in the lowest rank."""
    size: int | None = None
    free: int | None = None
    used: int | None = None
    reserved: int | None = None
    """The driver's own memory; None if the driver reports it as part of `used`."""
    other_used: int | None = None
    """Memory of processes without an agent. None if the driver hides processes or their memory."""
    name: str | None = None
    driver_version: str | None = None
    mig_profile: str | None = None
    parent_uuid: str | None = None
    """The GPU of a MIG instance."""


@dataclass(frozen=True)
class CollectorResult:
    """The result of one source. A missing source, such as NVML, is a failure with a reason."""

    success: bool
    duration_seconds: float | None = None
    """Of the last finished attempt; None before the first."""
    reason: str | None = None


@dataclass(frozen=True)
class Fleet:
    """One consistent view of everything, put together at `time`."""

    time: float
    ranks: tuple[RankView, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    collectors: Mapping[str, CollectorResult] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Files in the folder that gave no rank, by reason."""
    ooms: tuple[OomReport, ...] = ()
    """Reports of out-of-memory errors that are still kept, the latest first; of processes that have ended too."""

    analyses: Mapping[str, int] = field(default_factory=dict)
    """Step recordings, by the result of their analysis."""

    @property
    def states(self) -> dict[str, int]:
        """How many ranks are in each of STATES; a state without ranks is counted as 0."""
        found = Counter(rank.state for rank in self.ranks)
        return {state: found[state] for state in STATES}
