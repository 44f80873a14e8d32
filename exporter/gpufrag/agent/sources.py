"""What the agent needs from a framework, and the supported frameworks.

A source reads and, unless its user orders a defragmentation, never acts: it does not synchronise, free memory, reset
statistics or use a device first. Memory is in bytes, time in seconds of the system clock. A figure that a framework
does not provide is None; a device that the process does not use is left out.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..model.call_sites import Sites
from ..model.heap import Heap
from ..model.step import StepEvents
from ..wire.defragmentation import Defragmentations, DefragmentOptions, Result
from ..wire.error_counter import ErrorCounter
from ..wire.sample import DriverReading, Sums, Totals
from .torch.api import REFUSALS

ADAPTERS = {
    "torch": (".torch.source", "TorchSource"),
    "jax": (".jax", "JaxSource"),
    "tensorflow": (".tensorflow", "TensorflowSource"),
}
"""Framework module -> our module and its Source, best source first: the first framework of a process provides its
snapshots, steps and out-of-memory errors."""
DRIVER_VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_UUID_LENGTH = len("GPU-00000000-0000-0000-0000-000000000000")


@dataclass(frozen=True)
class DeviceFacts:
    """What does not change about a device while the process lives."""

    backend: str
    """Its allocator: native, cudaMallocAsync, pluggable, bfc, …"""
    uuid: str | None = None
    mig_uuid: str | None = None
    driver_version: str | None = None


@dataclass(frozen=True)
class DeviceReading:
    """The cheap figures of one device, read together. `device` is its ordinal in the process."""

    device: int
    totals: Totals | None = None
    """Its counters never fall, even if the user resets torch's."""
    driver: DriverReading | None = None
    held: float = 0.0
    """Seconds for which the reading kept all threads of the process from running Python."""
    sums: Sums | None = None
    """In place of `totals` for an allocator without torch's two pools."""
    limit: int | None = None
    """The most that the process may reserve, if a cheap reading has that too."""


class Live(NamedTuple):
    """What the program holds now: bytes, and the number of allocations (None if unknown)."""

    allocated: int
    blocks: int | None


@dataclass(frozen=True)
class Capture:
    """The heap of every device at one moment, copied but not parsed.

    Only the copy holds up the process; `heap`, `events` and `sites` do the rest of the work later, in another thread.
    `readings` are taken directly after the copy.
    """

    heap: Callable[[], Heap]
    readings: Sequence[DeviceReading]
    limits: Mapping[int, int] = field(default_factory=dict)
    """By device: the most that the process may reserve. A device without a limit is left out."""
    alloc_conf: str | None = None
    """The allocator's settings as the user wrote them."""
    held: float = 0.0
    """Seconds for which the copy kept all threads of the process from running Python."""
    waited: float = 0.0
    """The part of `held` spent waiting for the allocator's lock."""
    sites: Callable[[], Sites] | None = None
    """Live memory by call site; None unless the user records history with stacks."""
    events: Callable[[], Mapping[int, StepEvents]] | None = None
    """By device: what the allocator did since the recording began. None without a recording."""
    complete: bool = True
    """False if only the latest events were kept."""
    active_before: Mapping[int, int] = field(default_factory=dict)
    """By device: bytes that were active before the first of `events`, if known."""


class Fault(NamedTuple):
    """A request for memory that failed, reported in the thread that made it."""

    device: int
    requested: int
    """What the allocator asked the driver for; the program's own request is at most that."""
    driver_free: int


@runtime_checkable
class ReportsFaults(Protocol):
    """Optional: the source reports out-of-memory errors."""

    def watch_ooms(self, on_oom: Callable[[Fault], None]) -> bool:
        """Call `on_oom` at each out-of-memory error before it is raised; it may call `capture`.

        Returns False if this framework cannot do it (yet). After `close`, `on_oom` is not called any more.
        """
        ...


@runtime_checkable
class RecordsEvents(Protocol):
    """Optional: the source records what its allocator does. Any thread may call it; the caller serialises the calls."""

    def start_recording(self, max_events: int) -> str | None:
        """Keep the latest `max_events` events from now on. Returns None, or why it cannot (see step_recorder)."""
        ...

    def recorded_events(self) -> int | None:
        """About how many events were recorded so far; None if the program ended the recording."""
        ...

    def finish_recording(self, read: bool) -> Capture | None:
        """End the recording; with `read`, return the heap and the events that led to it."""
        ...


@runtime_checkable
class RecordsTraces(Protocol):
    """Optional: the source records some steps for the user, in torch's own form."""

    def start_trace(self, max_events: int, stacks: bool) -> str | None:
        """Record from now on, with Python stacks if wanted. Returns None, or why it cannot (see step_recorder)."""
        ...

    def finish_trace(self, read: bool) -> Mapping[str, Any] | None:
        """End it; with `read`, return torch's snapshot. None if the program ended the recording."""
        ...


@runtime_checkable
class RecordsStacks(Protocol):
    """Optional: the source records which lines of the program allocate."""

    def start_stacks(self) -> bool:
        """Record the Python stack of each allocation from now on; return whether it does."""
        ...

    def allocated_since(self, stop: bool) -> Callable[[], Sites] | None:
        """Copy what was allocated since `start_stacks` and is still live, by call site, to be read in another thread.

        stop: end the recording. None if the program has ended it.
        """
        ...


@runtime_checkable
class ReportsLive(Protocol):
    """Optional: the source provides what the program holds, in about ten microseconds."""

    def live(self, device: int) -> Live | None:
        """Of a device that `read` returned; None if unknown. Any thread may call it."""
        ...


@runtime_checkable
class Defragments(Protocol):
    """Optional: the source moves the program's memory. The only call that acts, and only on its user's order."""

    def defragment(self, options: DefragmentOptions) -> tuple[Result, ...]:
        """Return the result of each device in use. Called between two steps, in the training thread.

        Raises GpufragError if nothing was moved, or everything was put back.
        """
        ...

    def defragmented(self, device: int) -> Defragmentations | None:
        """Return what was done so far; None if nothing was."""
        ...


class Source(Protocol):
    """One framework in this process. Only `capture` and `graph_underway` are called outside the agent's thread."""

    @property
    def framework(self) -> str: ...

    @property
    def framework_version(self) -> str | None: ...

    def facts(self, device: int) -> DeviceFacts:
        """About a device that `read` or `capture` returned."""
        ...

    def read(self) -> Sequence[DeviceReading]:
        """Every device whose allocator holds memory. Called about once a second; some ten microseconds per device."""
        ...

    def capture(self) -> Capture | None:
        """Copy the heap of the devices that `read` returned; None if there is none.

        Any thread may call it while `graph_underway` is false there.
        """
        ...

    def history_in_use(self) -> bool:
        """Whether the user records the allocator's history: each capture then leaves an entry in it."""
        ...

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        """Call `on_step(optimizer)` after each optimizer step, in the thread that made the step.

        Returns False if the framework has no such hook. Called once, in the user's own thread.
        """
        ...

    def graph_underway(self) -> bool:
        """Whether the calling thread captures a graph, which a question to the device could break."""
        ...

    def close(self) -> None:
        """Stop calling `on_step`."""
        ...


class BareSource(ABC):
    """A framework that reports a few sums per device and nothing else: no heap, steps, graphs or errors.

    `module` is the framework that the process has imported itself.
    """

    framework: str
    function: str
    """The name under which a failing `_figures` is counted."""

    def __init__(self, module: ModuleType, errors: ErrorCounter, environment: Mapping[str, str] = os.environ) -> None:
        self._module: Any = module
        self._errors, self._environment = errors, environment
        self._latest: Sequence[DeviceReading] = ()

    @property
    def framework_version(self) -> str | None:
        return getattr(self._module, "__version__", None)

    @property
    @abstractmethod
    def backend(self) -> str:
        """The allocator that the user has chosen."""

    @abstractmethod
    def _devices(self) -> Iterable[Any]:
        """The GPUs that the program has initialised."""

    @abstractmethod
    def _figures(self, device: Any) -> DeviceReading | None:
        """Raises what the framework raises."""

    def facts(self, device: int) -> DeviceFacts:
        return device_facts(self.backend, device, self._environment)

    def read(self) -> Sequence[DeviceReading]:
        self._latest = [reading for device in self._devices() if (reading := self._read(device)) is not None]
        return self._latest

    def _read(self, device: Any) -> DeviceReading | None:
        began = time.perf_counter()
        try:
            reading = self._figures(device)
        except REFUSALS as error:  # for example, an allocator without statistics
            self._errors.note(self.function, error, f"figures of {self.framework}'s allocator are absent")
            return None
        return reading and replace(reading, held=time.perf_counter() - began)

    def live(self, device: int) -> Live | None:
        """From the latest reading: without steps the agent calls it directly after `read`."""
        sums = next((reading.sums for reading in self._latest if reading.device == device), None)
        return Live(sums.allocated, None) if sums and sums.allocated is not None else None

    def capture(self) -> None:
        return None

    def history_in_use(self) -> bool:
        return False

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        return False

    def graph_underway(self) -> bool:
        return False

    def close(self) -> None:
        self._latest = ()  # nothing was hooked into the framework


def connect(framework: ModuleType, errors: ErrorCounter) -> Source:
    """Return the source for a framework that this process uses; `errors` counts what the source catches."""
    module, name = ADAPTERS[framework.__name__]
    source: Source = getattr(import_module(module, __package__), name)(framework, errors)
    return source


def device_facts(
    backend: str,
    device: int,
    environment: Mapping[str, str],
    uuid: str | None = None,
    version_files: Sequence[Path] = DRIVER_VERSION_FILES,
) -> DeviceFacts:
    """What is known of a device without asking its driver.

    `uuid` is the framework's; without it, the variable that selects the visible devices may contain one.
    """
    entries = next((text for name in VISIBLE_DEVICES if (text := environment.get(name))), "").split(",")
    visible = entries[device].strip() if device < len(entries) else ""
    mig = visible if visible.startswith("MIG-") else None
    if uuid is None:
        uuid = visible if len(visible) == _UUID_LENGTH and not mig else None
    elif not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    return DeviceFacts(
        backend=backend,
        uuid=None if uuid and mig and uuid.removeprefix("GPU-") in mig else uuid,  # the UUID of the slice, not the GPU
        mig_uuid=mig,
        driver_version=next((text for file in version_files if (text := _first_line(file))), None),
    )


def _first_line(file: Path) -> str:
    try:
        return file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""
