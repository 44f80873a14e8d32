"""The rows about processes and the devices they run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .identity import NamedRank
from .row import COUNTER, GAUGE, INFO, Metric
from .sources import DEVICE, GPU, RANK, OnDevice
from .view import DeviceView

_INFO = (
    "local_rank", "world_size", "uuid", "mig_uuid", "pid", "framework", "framework_version", "backend", "alloc_conf",
    "driver_version",
)  # fmt: skip
_DEVICE_INFO = ("name", "driver_version", "mig_profile", "parent_uuid")


def _identity(place: OnDevice) -> Mapping[str, object]:
    """From the agent, but the device's names rather from the driver: an agent may know it by another form."""
    who, sample, memory = place.rank.view.sample.identity, place.sample, place.memory
    framework = who if sample.framework is None else sample
    values = (
        who.local_rank, who.world_size, memory.uuid or sample.uuid, memory.mig_uuid or sample.mig_uuid, who.pid,
        framework.framework, framework.framework_version, sample.backend, sample.alloc_conf, sample.driver_version,
    )  # fmt: skip
    return dict(zip(_INFO, values))


def _hardware(view: DeviceView) -> Mapping[str, object]:
    return {label: getattr(view, label) for label in _DEVICE_INFO}


def _peak_method(rank: NamedRank) -> Mapping[str, object] | None:
    method = rank.view.sample.peak_method
    return None if method is None else {"method": method}


def _steps(rank: NamedRank) -> int | None:
    return rank.view.sample.steps


def _causes(place: OnDevice) -> Mapping[str, int]:
    return place.sample.ooms.causes if place.sample.ooms else {}


def _leak(unit: str) -> Callable[[OnDevice], float | None]:
    def rate(place: OnDevice) -> float | None:
        leak = place.sample.leak
        return leak.rate if leak is not None and leak.unit == unit else None

    return rate


def _last_oom(place: OnDevice) -> float | None:
    return place.sample.ooms.last_time if place.sample.ooms else None


def _last_oom_requested(place: OnDevice) -> int | None:
    return place.sample.ooms.last_requested if place.sample.ooms else None


PROCESS: tuple[Metric[Any], ...] = (
    Metric(
        "gpufrag_process_info", INFO, DEVICE, _identity,
        "Who the process is; always 1. Join it to the other metrics on rank and device (and process, where it is "
        "there).",
        adds=_INFO,
    ),
    Metric(
        "gpufrag_process_device_memory_used_bytes", GAUGE, DEVICE, lambda place: place.memory.used,
        "All that the process holds on the device, as the driver counts it: allocator, CUDA context and libraries. "
        "Absent where the driver shows no processes, as in most containers.",
        detail=True,
    ),
    Metric(
        "gpufrag_process_context_memory_bytes", GAUGE, DEVICE, lambda place: place.memory.context,
        "What the process holds outside its allocator (used - reserved): CUDA context, NCCL, cuBLAS workspaces.",
    ),
    Metric(
        "gpufrag_steps_total", COUNTER, RANK, _steps,
        "Optimizer steps that the agent has seen. Absent where the process takes none.",
    ),
    Metric(
        "gpufrag_peak_method_info", INFO, RANK, _peak_method,
        "How the snapshots with at=peak are found; always 1. phase: by the place of the peak in earlier steps. "
        "level: by the height they reach. fall: when memory begins to fall. timer: no peak is told, snapshots come at "
        "random moments instead. Absent where memory cannot be followed.",
        adds=("method",), detail=True,
    ),
    Metric(
        "gpufrag_leak_bytes_per_step", GAUGE, DEVICE, _leak("step"),
        "By how much allocated memory grows from step to step, for ever as it seems; 0 where enough was seen and "
        "nothing grows by more than the threshold. Absent as long as not enough is known, and without steps.",
    ),
    Metric(
        "gpufrag_leak_bytes_per_second", GAUGE, DEVICE, _leak("second"),
        "The same for a process that takes no steps, as one that serves: only what has lasted for many minutes counts.",
    ),
)  # fmt: skip

OOMS: tuple[Metric[Any], ...] = (
    Metric(
        "gpufrag_oom_causes_total", COUNTER, DEVICE, _causes,
        "Out-of-memory errors by cause, as the agent explained them. fragmentation: the request would have fitted the "
        "free bytes, but no piece of them; capacity: not even all together; limit: the cap of the process stood in the "
        "way; neighbours: other processes did.",
        adds=("cause",),
    ),
    Metric(
        "gpufrag_oom_last_timestamp_seconds", GAUGE, DEVICE, _last_oom,
        "When the last out-of-memory error of the process was; absent before the first.",
        outlives=True,
    ),
    Metric(
        "gpufrag_oom_last_requested_bytes", GAUGE, DEVICE, _last_oom_requested,
        "What the allocator asked the driver for in the last out-of-memory error. Compare it with free_total and "
        "largest_allocatable.",
        outlives=True,
    ),
)  # fmt: skip

GPUS: tuple[Metric[Any], ...] = (
    Metric(
        "gpufrag_device_info", INFO, GPU, _hardware,
        "What the device is; always 1. A GPU that is cut up by MIG is shown by its instances, each with the GPU as "
        "parent_uuid.",
        adds=_DEVICE_INFO,
    ),
    Metric(
        "gpufrag_device_memory_size_bytes", GAUGE, GPU, lambda view: view.size,
        "Memory of the device (of a MIG instance: its share).",
    ),
    Metric(
        "gpufrag_device_memory_free_bytes", GAUGE, GPU, lambda view: view.free,
        "Memory that nobody on the device holds.",
        detail=True,
    ),
    Metric(
        "gpufrag_device_memory_used_bytes", GAUGE, GPU, lambda view: view.used,
        "Memory that all processes on the device hold.",
    ),
    Metric(
        "gpufrag_device_memory_reserved_bytes", GAUGE, GPU, lambda view: view.reserved,
        "Memory that the driver keeps for itself. Absent where it cannot be told apart and is counted in used.",
        detail=True,
    ),
    Metric(
        "gpufrag_device_other_processes_memory_used_bytes", GAUGE, GPU, lambda view: view.other_used,
        "Memory held by processes without an agent: neighbours that this job cannot see. Absent where the driver does "
        "not show them.",
    ),
)  # fmt: skip
