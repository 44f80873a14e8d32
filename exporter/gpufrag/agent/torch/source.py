"""PyTorch in this process, CUDA and ROCm alike.

Nothing here initialises CUDA or creates a context: every question is put only once the process has done so itself.
The native allocator's statistics and snapshot, and the driver's memory figures, may be read while another thread
captures a CUDA graph; cudaMallocAsync's statistics may not, and are asked for between steps. What one of torch's
functions tells is missing where this torch has not that function; the rest is told.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ...model import call_sites as sites
from ...model.heap import parse
from ...wire.error_counter import ErrorCounter
from ...wire.sample import Counters, DriverReading, Sums, Totals
from ..peak import Level
from ..sources import Capture, DeviceFacts, DeviceReading, Fault, Live
from . import devices as torch_devices
from . import oom as torch_oom
from . import snapshot as torch_snapshot
from . import stats as torch_stats
from .api import REFUSALS, TorchSurface

ASYNC = "cudaMallocAsync"
LONG_PROBE = 0.001
"""Seconds. Statistics are copied in microseconds: above this they waited for the allocator's lock."""
ASYNC_EVERY = 1.0
"""Seconds between two readings of the driver's allocator."""
FRESH = 0.0005
"""Seconds. So long ago the lock was to be had, and at a peak the heap must be copied at once."""


class TorchSource:
    """`torch` is the module that the process has imported itself."""

    framework = "torch"

    def __init__(self, torch: ModuleType, trouble: ErrorCounter, environment: Mapping[str, str] = os.environ) -> None:
        self._surface, self._trouble, self._environment = TorchSurface(torch, trouble), trouble, environment
        self._counters: dict[int, torch_stats.CounterMemory] = {}
        self._looked_at = self._async_at = -math.inf
        self._async: dict[int, torch_stats.Stats] = {}
        self._on_step: Callable[[object], None] | None = None
        self._on_oom: Callable[[Fault], None] | None = None

    @property
    def framework_version(self) -> str:
        """Torch's own; a ROCm build that does not say so in its version has it added."""
        version, rocm = self._surface.version, self._surface.value("version.hip")
        return version if not rocm or "rocm" in version else f"{version}{'.' if '+' in version else '+'}rocm{rocm}"

    def facts(self, device: int) -> DeviceFacts:
        return torch_devices.facts(self._surface, device, self._environment)

    def read(self) -> Sequence[DeviceReading]:
        readings = [self._read(device) for device in torch_devices.in_use(self._surface)]
        return [reading for reading in readings if reading is not None]

    def capture(self) -> Capture | None:
        if not self._surface.ask("cuda.is_initialized") or self._backend() != "native":
            return None
        if self._would_import():
            return None
        began = time.perf_counter()
        if began - self._looked_at > FRESH:
            self._probe()
        waited = time.perf_counter() - began
        snapshot = torch_snapshot.take(self._surface, self._trouble)
        held = time.perf_counter() - began
        if snapshot is None:
            return None
        conf = torch_snapshot.conf(snapshot, self._environment)
        settings = torch_snapshot.settings(conf, self._trouble)
        stats = {device: self._stats(device) for device in tuple(self._counters)}
        limits = {device: torch_devices.limit(self._surface, device, settings) for device in stats}
        return Capture(
            heap=lambda: parse(snapshot, settings),
            readings=[r for device in stats if (r := self._reading(device, stats[device], Counters(), 0.0))],
            limits={device: limit for device, limit in limits.items() if limit is not None},
            alloc_conf=conf,
            held=held,
            waited=waited if waited > LONG_PROBE else 0.0,
            sites=(lambda: sites.read(snapshot)) if self.recording() else None,
        )

    def level(self, device: int) -> Level | None:
        stats = self._native_stats(device)
        self._looked_at = time.perf_counter()
        return torch_stats.level(stats) if stats else None

    def live(self, device: int) -> Live | None:
        stats = self._native_stats(device)
        return torch_stats.live(stats) if stats else None

    def recording(self) -> bool:
        return bool(self._surface.ask("cuda.is_initialized") and self._surface.ask("_C._cuda_isHistoryEnabled"))

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        register = self._surface.find("optim.optimizer.register_optimizer_step_post_hook")
        if register is None or self._surface.find("cuda.is_current_stream_capturing") is None:
            return False
        self._on_step = on_step
        register(self._hook)
        return True

    def graph_underway(self) -> bool:
        return self._surface.ask("cuda.is_current_stream_capturing") is not False  # an unknown state is not safe

    def watch_ooms(self, on_oom: Callable[[Fault], None]) -> bool:
        self._on_oom = on_oom
        return torch_oom.attach(self._surface, self._trouble, self._observer)

    def close(self) -> None:
        # torch keeps the hook: taking one out while another thread steps would break that step
        self._on_step = self._on_oom = None

    def _hook(self, optimizer: object, args: object, kwargs: object) -> None:
        if (on_step := self._on_step) is not None:
            self._read_between_steps()
            on_step(optimizer)

    def _read_between_steps(self) -> None:
        """Asking the driver's pool breaks a capture, whichever thread asks (seen on an H200): here none is underway."""
        now = time.perf_counter()
        if now - self._async_at < ASYNC_EVERY or not self._surface.ask("cuda.is_initialized") or self.graph_underway():
            return
        self._async_at = now
        if self._backend() != ASYNC:
            return
        for device in torch_devices.in_use(self._surface):
            if torch_devices.has_context(self._surface, device):  # else asking would make one
                self._async[device] = self._ask_stats(device)

    def _would_import(self) -> bool:
        """With history on torch's copy asks torch._inductor for the frames of generated code, and imports it first.

        That takes seconds, and can break an import that the program is in the midst of.
        """
        return self.recording() and not self._surface.loaded("_inductor")

    def _observer(self, fault: Fault) -> None:
        if (on_oom := self._on_oom) is not None:
            self._counters.setdefault(fault.device, torch_stats.CounterMemory())  # its first request may have failed
            on_oom(fault)

    def _probe(self) -> None:
        """Waits out whoever holds the allocator's lock, so that the copy itself does not."""
        for device in tuple(self._counters):
            self._stats(device)

    def _backend(self) -> Any:
        return self._surface.ask("cuda.get_allocator_backend")

    def _ask_stats(self, device: int) -> torch_stats.Stats:
        return self._surface.ask("cuda.memory_stats_as_nested_dict", device) or {}

    def _native_stats(self, device: int) -> torch_stats.Stats:
        """As they are now; empty for any allocator but torch's own."""
        return self._ask_stats(device) if self._backend() == "native" else {}

    def _stats(self, device: int) -> torch_stats.Stats:
        """Empty where torch tells none: a pluggable allocator has none, the driver's is asked between steps only."""
        return self._native_stats(device) or self._async.get(device, {})

    def _read(self, device: int) -> DeviceReading | None:
        """None for a device whose allocator has never held memory, and for one that no longer answers."""
        began = time.perf_counter()
        stats = self._stats(device)
        held = time.perf_counter() - began
        if not self._holds_memory(device, stats):
            return None
        counters = self._counters.setdefault(device, torch_stats.CounterMemory()).update(stats)
        return self._reading(device, stats, counters, held)

    def _holds_memory(self, device: int, stats: torch_stats.Stats) -> bool:
        """What it has held once, it may hold again; an allocator that cannot be asked is taken to hold some."""
        return device in self._counters or not stats or torch_stats.reserved(stats) > 0

    def _reading(self, device: int, stats: torch_stats.Stats, counters: Counters, held: float) -> DeviceReading | None:
        (totals, sums), driver = self._figures(stats, counters), self._driver(device)
        return DeviceReading(device, totals, driver, held, sums) if totals or sums or driver else None

    def _figures(self, stats: torch_stats.Stats, counters: Counters) -> tuple[Totals | None, Sums | None]:
        """By pool, or both pools together where the allocator knows of none."""
        if not stats:
            return None, None
        try:
            if self._backend() == ASYNC:
                return None, torch_stats.sums(stats, time.time())
            return torch_stats.totals(stats, time.time(), counters), None
        except REFUSALS as error:
            self._trouble.note("torch statistics", error, "a newer gpufrag may know this torch")
            return None, None

    def _driver(self, device: int) -> DriverReading | None:
        if not torch_devices.has_context(self._surface, device):
            return None
        info = self._surface.ask("cuda.mem_get_info", device)
        return DriverReading(time.time(), free=info[0], size=info[1]) if info else None


def connect(framework: ModuleType, trouble: ErrorCounter) -> TorchSource:
    return TorchSource(framework, trouble)
