"""TABLE: every metric of gpufrag. To add one, add its name to names.py and a row here."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from .. import __version__
from ..model.allocatable import Driver
from ..model.fragmentation import Pool
from ..model.needs import RECORDED
from ..wire.defragmentation import Defragmentations
from . import names
from .names import Label
from .places import (
    COLLECTOR,
    DEVICE,
    FLEET,
    FREE,
    FREE_POOL,
    GPU,
    RANK,
    SNAPSHOT,
    SNAPSHOT_POOL,
    STEP,
    TOTALS,
    TOTALS_POOL,
    OnDevice,
    Source,
)
from .view import CollectorResult, DeviceView, StepView

T = TypeVar("T")

GAUGE = "gauge"
COUNTER = "counter"
INFO = "info"
HISTOGRAM = "gaugehistogram"

RATIO = f"{names.FREE_TOTAL} / {names.LARGEST_ALLOCATABLE}"
"""The fragmentation ratio in PromQL, by rank, device and moment. It needs no recording rule."""


class Sizes(NamedTuple):
    """What `read` of a histogram returns: counts by bucket (not cumulative, the last is unbounded) and their sum."""

    counts: Sequence[int]
    total: int


Reading = float | None | Mapping[str, float | None] | Mapping[str, object] | Sizes


@dataclass(frozen=True)
class Metric(Generic[T]):
    """One metric, and how it is read at each place of its source.

    `read` returns a number, or None for no series. If `adds` names a label, `read` returns a number for each value of
    that label; for INFO, the values of the labels in `adds`; for HISTOGRAM, Sizes.
    """

    name: str
    kind: str
    source: Source[T]
    read: Callable[[T], Reading]
    help: str
    adds: tuple[str, ...] = ()
    after_exit: bool = False
    """Whether a gauge is still exported after its process has exited, while its last sample is kept."""
    detail: bool = False
    """Whether no alert or recording rule reads it: `--no-detail` leaves it out."""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.source.labels + self.adds

    @property
    def unit(self) -> str:
        """The base unit at the end of the name, or an empty string."""
        unit = self.name.removesuffix("_total").rpartition("_")[2]
        return unit if unit in ("bytes", "seconds") else ""

    @property
    def shown_after_exit(self) -> bool:
        return self.after_exit or self.kind == COUNTER


def _limit(place: OnDevice) -> int | None:
    driver = place.sample.driver
    return Driver(size=driver.size if driver else None, limit=place.sample.limit).cap


def _blocks(pool: Pool) -> Mapping[str, int]:
    return {"allocated": pool.active_blocks, "awaiting_free": pool.awaiting_blocks, "free": pool.inactive_blocks}


ALLOCATOR: tuple[Metric[Any], ...] = (
    Metric(names.ALLOCATED, GAUGE, TOTALS_POOL, lambda pool: pool.allocated,
        "Bytes in blocks held by tensors, including rounding."),
    Metric(names.REQUESTED, GAUGE, TOTALS_POOL, lambda pool: pool.requested,
        "Bytes that the program requested for the active blocks. active - requested is lost to rounding, and to blocks "
        "that are larger than their request."),
    Metric(names.ACTIVE, GAUGE, TOTALS_POOL, lambda pool: pool.active,
        "Allocated bytes, plus freed bytes that still wait for a stream."),
    Metric(names.RESERVED, GAUGE, TOTALS_POOL, lambda pool: pool.reserved,
        "Bytes of all segments that the allocator holds. (reserved - allocated) / reserved is the unused share. Below "
        "0.2 is fine, above 0.4 is waste."),
    Metric(names.INACTIVE_SPLIT, GAUGE, TOTALS_POOL, lambda pool: pool.inactive_split,
        "Free bytes in segments that also hold live blocks, as torch counts them. Always 0 with expandable segments: "
        "use stranded instead.", detail=True),
    Metric(names.FREE_CACHED, GAUGE, FREE_POOL, lambda pool: pool.free_cached,
        "Bytes of free blocks in the allocator's cache. Other processes cannot use them."),
    Metric(names.LARGEST_FREE_BLOCK, GAUGE, FREE_POOL, lambda pool: pool.largest_free_block,
        "Largest free block in the cache. The cache cannot serve a larger request."),
    Metric(names.LARGEST_ACTIVE_BLOCK, GAUGE, SNAPSHOT_POOL, lambda pool: pool.largest_active_block,
        "Largest block in use.", detail=True),
    Metric(names.RECLAIMABLE, GAUGE, SNAPSHOT_POOL, lambda pool: pool.reclaimable,
        "Free bytes that the allocator can return to the driver before it raises an out-of-memory error. They are in "
        "segments without a live block or, with expandable segments, in whole free pages."),
    Metric(names.STRANDED, GAUGE, SNAPSHOT_POOL, lambda pool: pool.stranded,
        "Free bytes pinned between live blocks: the memory lost to fragmentation. torch.cuda.empty_cache() cannot "
        "return them. Equal to free_cached, plus bytes that wait for a stream, minus reclaimable."),
    Metric(names.SEGMENTS, GAUGE, SNAPSHOT_POOL, lambda pool: pool.segments,
        "Segments that the allocator holds. Each is one allocation of the driver or, with expandable segments, one "
        "mapped range.", detail=True),
    Metric(names.BLOCKS, GAUGE, SNAPSHOT_POOL, _blocks,
        "Blocks by state: allocated (in use), awaiting_free (freed, but a stream still uses it), or free.",
        adds=(Label.STATE,), detail=True),
    Metric(names.FREE_BLOCK_SIZE, HISTOGRAM, SNAPSHOT_POOL,
        lambda pool: Sizes(pool.free_block_sizes, pool.free_cached),
        "Sizes of the free blocks. Much memory in small blocks means fragmentation.", detail=True),
    Metric(names.FREE_TOTAL, GAUGE, FREE, lambda measured: measured.free_total,
        "All free bytes: free_cached, plus bytes that wait for a stream, plus headroom. "
        f"{RATIO} is the fragmentation ratio. 1 is perfect, above 4 is fragmented."),
    Metric(names.LARGEST_ALLOCATABLE, GAUGE, FREE, lambda measured: measured.largest_allocatable,
        "Largest single request that would succeed now. A larger one raises an out-of-memory error. "
        f"{RATIO} is the fragmentation ratio."),
    Metric(names.HEADROOM, GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.headroom,
        "Bytes that the allocator can still get from the driver: the smaller of the device's free memory and "
        "limit - reserved.", detail=True),
    Metric(names.CAPTIVE, GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.captive,
        "Free bytes in private pools (CUDA graphs, MemPool). Other requests cannot use them, so free_cached and "
        "free_total exclude them.", detail=True),
    Metric(names.PRIVATE_POOL_RESERVED, GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.private_pool_reserved,
        "Bytes of all segments of private pools (CUDA graphs, MemPool). Part of reserved.", detail=True),
    Metric(names.LIMIT, GAUGE, DEVICE, _limit,
        "Most bytes that the process may reserve: its set_per_process_memory_fraction, else the device's size."),
    Metric(names.LARGEST_RECURRING, GAUGE, DEVICE, lambda place: place.sample.largest_recurring,
        "Largest request of the last recorded step. If largest_allocatable is smaller, the next such request fails."),
    Metric(names.PEAK_ACTIVE, GAUGE, TOTALS, lambda totals: totals.peak_active,
        "Highest active bytes since the process started or reset its peak statistics. The peak fragmentation is "
        "1 - peak_active / peak_reserved."),
    Metric(names.PEAK_RESERVED, GAUGE, TOTALS, lambda totals: totals.peak_reserved,
        "Highest reserved bytes since the process started or reset its peak statistics."),
    Metric(names.ALLOC_RETRIES, COUNTER, TOTALS, lambda totals: totals.counters.alloc_retries,
        "Times the driver or the memory limit refused memory and the allocator flushed its cache to try again. Each "
        "flush stalls the job."),
    Metric(names.OOMS, COUNTER, TOTALS, lambda totals: totals.counters.ooms,
        "Out-of-memory errors raised by the allocator, including errors that the program caught."),
    Metric(names.DEVICE_ALLOCS, COUNTER, TOTALS, lambda totals: totals.counters.device_allocs,
        "Allocations by the driver (cudaMalloc, or a mapped page). In a steady job this does not increase.",
        detail=True),
    Metric(names.DEVICE_FREES, COUNTER, TOTALS, lambda totals: totals.counters.device_frees,
        "Times the allocator returned memory to the driver. Each time, it waits for the device.", detail=True),
    Metric(names.STREAM_SYNCS, COUNTER, TOTALS, lambda totals: totals.counters.stream_syncs,
        "Times the allocator waited for streams before it flushed its cache.", detail=True),
    Metric(names.SNAPSHOT_TIMESTAMP, GAUGE, SNAPSHOT, lambda snapshot: snapshot.time,
        "Unix time of the latest snapshot. All figures with the same value of at come from it."),
    Metric(names.SNAPSHOT_DURATION, GAUGE, SNAPSHOT, lambda snapshot: snapshot.duration,
        "How long the latest snapshot paused the process.", detail=True),
    Metric(names.SNAPSHOT_ACTIVE, GAUGE, SNAPSHOT, lambda snapshot: snapshot.measured.active,
        "Active bytes in the snapshot, including private pools."),
)  # fmt: skip

_PROCESS_INFO = (
    Label.LOCAL_RANK, Label.WORLD_SIZE, Label.UUID, Label.MIG_UUID, Label.PID, Label.FRAMEWORK,
    Label.FRAMEWORK_VERSION, Label.BACKEND, Label.ALLOC_CONF, Label.DRIVER_VERSION,
)  # fmt: skip


def _process_info(place: OnDevice) -> Mapping[str, object]:
    """The driver's uuids are preferred: an agent may see the device under another form of its name."""
    who, sample, memory = place.rank.view.sample.identity, place.sample, place.memory
    framework = who if sample.framework is None else sample
    values = (
        who.local_rank, who.world_size, memory.uuid or sample.uuid, memory.mig_uuid or sample.mig_uuid, who.pid,
        framework.framework, framework.framework_version, sample.backend, sample.alloc_conf, sample.driver_version,
    )  # fmt: skip
    return dict(zip(_PROCESS_INFO, values))


def _leak(unit: str) -> Callable[[OnDevice], float | None]:
    def rate(place: OnDevice) -> float | None:
        leak = place.sample.leak
        return leak.rate if leak is not None and leak.unit == unit else None

    return rate


def _margin(step: StepView) -> int | None:
    needed = step.smallest_limits.get(RECORDED)
    return None if step.limit is None or needed is None else step.limit - needed


STEPS: tuple[Metric[Any], ...] = (
    Metric(names.STEP_SMALLEST_LIMIT, GAUGE, STEP, lambda step: step.smallest_limits.get(RECORDED),
        "Smallest memory limit under which every request of the last analysed step succeeds. This is the memory that "
        "the job really needs, including fragmentation. Requests that failed in this step are left out."),
    Metric(names.STEP_MARGIN, GAUGE, STEP, _margin,
        "limit - smallest limit of the last analysed step. At 0, a slightly larger step fails."),
    Metric(names.WHATIF_SMALLEST_LIMIT, GAUGE, STEP,
        lambda step: {name: limit for name, limit in step.smallest_limits.items() if name != RECORDED},
        "Smallest limit of the last analysed step by allocator setting, if the blocks from before the step had no "
        "gaps between them. setting=\"recorded, packed\" is the job's own setting. Compare these limits only with each "
        "other. Exception: setting=\"recorded, empty_cache\" keeps the gaps; compare it with "
        "gpufrag_step_smallest_limit_bytes.",
        adds=(Label.SETTING,), detail=True),
    Metric(names.STEP_LARGEST_REQUEST, GAUGE, STEP, lambda step: step.largest_request or None,
        "Largest request of the last analysed step.", detail=True),
    Metric(names.STEP_ALLOCATIONS, GAUGE, STEP, lambda step: step.allocations,
        "Number of requests of the last analysed step.", detail=True),
    Metric(names.STEP_ALLOCATED, GAUGE, STEP, lambda step: step.requested,
        "Sum of all requests of the last analysed step.", detail=True),
    Metric(names.STEP_DURATION, GAUGE, STEP, lambda step: step.seconds,
        "How long the last analysed step took.", detail=True),
    Metric(names.STEP_TIMESTAMP, GAUGE, STEP, lambda step: step.time,
        "Unix time of the end of the last analysed step.", detail=True),
)  # fmt: skip

PROCESSES: tuple[Metric[Any], ...] = (
    Metric(names.PROCESS_INFO, INFO, DEVICE, _process_info,
        "Identity of the process. Always 1. Join on rank and device, and on process if present.", adds=_PROCESS_INFO),
    Metric(names.PROCESS_DEVICE_USED, GAUGE, DEVICE, lambda place: place.memory.used,
        "Device memory of the process, as the driver reports it. Absent where the driver shows no processes, such as "
        "in most containers.", detail=True),
    Metric(names.PROCESS_CONTEXT, GAUGE, DEVICE, lambda place: place.memory.context,
        "Device memory of the process outside its allocator, such as the CUDA context and NCCL buffers."),
    Metric(names.STEPS, COUNTER, RANK, lambda rank: rank.view.sample.steps,
        "Optimizer steps. Absent if the process takes none."),
    Metric(names.STEP_RECORDINGS, COUNTER, RANK, lambda rank: rank.view.sample.health.recordings,
        "Steps that the agent tried to record, by result. Only result=\"recorded\" leads to figures with at=\"peak\". "
        "docs/agent-reference.md explains the other results.",
        adds=(Label.RESULT,), detail=True),
    Metric(names.LEAK_PER_STEP, GAUGE, DEVICE, _leak("step"),
        "Estimated growth of allocated memory per step. 0 means that no leak was detected. Absent until there are "
        "about 50 readings."),
    Metric(names.LEAK_PER_SECOND, GAUGE, DEVICE, _leak("second"),
        "Estimated growth of allocated memory per second, in processes without optimizer steps, such as servers."),
)  # fmt: skip


def _defragmented(read: Callable[[Defragmentations], Reading]) -> Callable[[OnDevice], Reading]:
    def value(place: OnDevice) -> Reading:
        done = place.sample.defragmentations
        return None if done is None else read(done)

    return value


DEFRAGMENTATIONS: tuple[Metric[Any], ...] = (
    Metric(
        names.DEFRAGMENT_MOVED, COUNTER, DEVICE, _defragmented(lambda done: done.moved_bytes),
        "Bytes that defragmentations moved. Absent before the first one.",
        detail=True,
    ),
    Metric(
        names.DEFRAGMENT_SECONDS, COUNTER, DEVICE, _defragmented(lambda done: done.seconds),
        "Seconds for which defragmentations paused the process, even if they moved nothing.",
        detail=True,
    ),
    Metric(
        names.DEFRAGMENT_REFUSED, COUNTER, DEVICE,
        lambda place: done.refused if (done := place.sample.defragmentations) else {},
        "Defragmentations that moved nothing, by reason. docs/defragment.md explains the reasons.",
        adds=(Label.REASON,), detail=True,
    ),
    Metric(
        names.DEFRAGMENT_LARGEST_BEFORE, GAUGE, DEVICE, _defragmented(lambda done: done.largest_allocatable_before),
        "largest_allocatable before the last defragmentation that moved memory.",
        detail=True,
    ),
    Metric(
        names.DEFRAGMENT_LARGEST_AFTER, GAUGE, DEVICE, _defragmented(lambda done: done.largest_allocatable_after),
        "largest_allocatable after the last defragmentation that moved memory.",
        detail=True,
    ),
)  # fmt: skip

OOM_ERRORS: tuple[Metric[Any], ...] = (
    Metric(names.OOM_CAUSES, COUNTER, DEVICE, lambda place: place.sample.ooms.causes if place.sample.ooms else {},
        "Out-of-memory errors by cause: fragmentation, capacity, limit, neighbours (other processes hold the memory) "
        "or unknown. docs/oom.md explains the causes.",
        adds=(Label.CAUSE,)),
    Metric(names.OOM_LAST_TIMESTAMP, GAUGE, DEVICE, lambda place: place.sample.ooms and place.sample.ooms.last_time,
        "Unix time of the last out-of-memory error. Absent before the first.", after_exit=True),
    Metric(names.OOM_LAST_REQUESTED, GAUGE, DEVICE,
        lambda place: place.sample.ooms and place.sample.ooms.last_requested,
        "Bytes that the allocator requested from the driver at the last out-of-memory error.", after_exit=True),
)  # fmt: skip

_DEVICE_INFO = (Label.NAME, Label.DRIVER_VERSION, Label.MIG_PROFILE, Label.PARENT_UUID)


def _device_info(view: DeviceView) -> Mapping[str, object]:
    return dict(zip(_DEVICE_INFO, (view.name, view.driver_version, view.mig_profile, view.parent_uuid)))


DEVICES: tuple[Metric[Any], ...] = (
    Metric(names.DEVICE_INFO, INFO, GPU, _device_info,
        "Identity of the device. Always 1. With MIG, each instance is a device, and parent_uuid is its GPU.",
        adds=_DEVICE_INFO),
    Metric(names.DEVICE_SIZE, GAUGE, GPU, lambda view: view.size,
        "Memory size of the device, or of the MIG instance."),
    Metric(names.DEVICE_FREE, GAUGE, GPU, lambda view: view.free,
        "Free memory of the device.", detail=True),
    Metric(names.DEVICE_USED, GAUGE, GPU, lambda view: view.used,
        "Memory that all processes hold on the device."),
    Metric(names.DEVICE_RESERVED, GAUGE, GPU, lambda view: view.reserved,
        "Memory of the device that the driver keeps for itself. Absent if the driver counts it as used.", detail=True),
    Metric(names.DEVICE_OTHERS_USED, GAUGE, GPU, lambda view: view.other_used,
        "Memory that processes without an agent hold on the device. Absent where the driver shows no processes."),
)  # fmt: skip


def _failure(result: CollectorResult) -> Mapping[str, object] | None:
    return None if result.success or not result.reason else {Label.REASON: result.reason}


HEALTH: tuple[Metric[Any], ...] = (
    Metric(names.UP, GAUGE, RANK, lambda rank: int(rank.view.alive),
        "1 while the process is alive, even if it hangs. 0 for 10 minutes after it exited.", after_exit=True),
    Metric(names.RANKS, GAUGE, FLEET, lambda fleet: fleet.states,
        "Processes with an agent, by state: alive or dead.", adds=(Label.STATE,)),
    Metric(names.SAMPLE_TIMESTAMP, GAUGE, RANK, lambda rank: rank.view.sample.time,
        "Unix time of the agent's last sample. If it stops while gpufrag_up is 1, the process hangs."),
    Metric(names.STALL, COUNTER, RANK, lambda rank: rank.view.sample.health.stall_seconds,
        "Seconds for which the agent paused the process, by cause: reading counters (stats), taking snapshots "
        "(snapshot), or waiting for the allocator (wait). Only cause=\"measure\" is not a pause, but CPU time "
        "of a background thread.", adds=(Label.CAUSE,)),
    Metric(names.AGENT_ERRORS, COUNTER, RANK, lambda rank: rank.view.sample.health.errors,
        "Errors inside the agent, by source. They never reach the program.", adds=(Label.SOURCE,)),
    Metric(names.SAMPLE_FILES_SKIPPED, GAUGE, FLEET, lambda fleet: fleet.skipped,
        "Files in the agents' folder that the sidecar skipped, by reason.", adds=(Label.REASON,)),
    Metric(names.STEP_ANALYSES, COUNTER, FLEET, lambda fleet: fleet.analyses,
        "Step recordings that the sidecar received, by result: analysed, failed, timed_out, skipped (a newer one "
        "replaced it), or inconsistent (another thread allocated while the agent read the step).",
        adds=(Label.RESULT,)),
    Metric(names.COLLECTOR_SUCCESS, GAUGE, COLLECTOR, lambda result: int(result.success),
        "1 if the sidecar could read this source, else 0. In a container without a GPU, 0 for nvml is normal."),
    Metric(names.COLLECTOR_DURATION, GAUGE, COLLECTOR, lambda result: result.duration_seconds,
        "How long the sidecar's last complete reading of this source took."),
    Metric(names.COLLECTOR_FAILURE_INFO, INFO, COLLECTOR, _failure,
        "Why the sidecar cannot read a source. Present only while it fails.", adds=(Label.REASON,)),
    Metric(names.BUILD_INFO, INFO, FLEET,
        lambda _: {Label.VERSION: __version__, Label.PYTHON: platform.python_version()},
        "Version of gpufrag and Python. Always 1.", adds=(Label.VERSION, Label.PYTHON)),
)  # fmt: skip

SECTIONS: dict[str, tuple[Metric[Any], ...]] = {
    "Allocator": ALLOCATOR,
    "Recorded steps": STEPS,
    "Processes": PROCESSES,
    "Defragmentation": DEFRAGMENTATIONS,
    "Out-of-memory errors": OOM_ERRORS,
    "Devices": DEVICES,
    "Health of gpufrag": HEALTH,
}

TABLE: tuple[Metric[Any], ...] = tuple(row for rows in SECTIONS.values() for row in rows)
