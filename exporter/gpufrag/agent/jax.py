"""JAX in this process: XLA's own figures for each GPU that the process has initialised itself.

No backend is initialised from here, which would preallocate most of a device: only the table of existing backends is
read.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ..wire.error_counter import ErrorCounter
from ..wire.sample import Sums
from .sources import BareSource, DeviceFacts, DeviceReading, device_facts
from .torch.api import REFUSALS

BRIDGE = "jax._src.xla_bridge"
"""Has `_backends`, by platform. Its public function takes a lock that is held while backends are created."""
PLATFORMS = ("cuda", "rocm", "gpu")
ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
BFC = "bfc"
GRAIN = 2 << 20
"""Bytes. A pool that may grow by less takes no more memory from the driver."""


class JaxSource(BareSource):
    """`jax` is the module that the process has imported itself."""

    framework = "jax"

    def __init__(self, jax: ModuleType, errors: ErrorCounter, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(self._all)
        self._jax, self._errors, self._environment = jax, errors, environment

    @property
    def framework_version(self) -> str | None:
        return getattr(self._jax, "__version__", None)

    @property
    def backend(self) -> str:
        """XLA's allocator: bfc unless the user chose another (platform, cuda_async)."""
        chosen = self._environment.get(ALLOCATOR, "").lower()
        return BFC if chosen in ("", "default") else chosen

    def facts(self, device: int) -> DeviceFacts:
        return device_facts(self.backend, device, self._environment)

    def _all(self) -> Sequence[DeviceReading]:
        return [reading for device in _gpus() if (reading := self._read(device)) is not None]

    def _read(self, device: Any) -> DeviceReading | None:
        began = time.perf_counter()
        try:
            stats = device.memory_stats()
        except REFUSALS as error:  # XLA's own is a RuntimeError: an allocator without statistics
            self._errors.note("jax.Device.memory_stats", error, "figures of JAX's allocator are absent")
            return None
        held = time.perf_counter() - began
        if not stats:
            return None
        figures = sums(stats, time.time(), self.backend)
        return DeviceReading(_ordinal(device), held=held, sums=figures, limit=_value(stats, "bytes_limit"))


def sums(stats: Mapping[str, int], now: float, backend: str) -> Sums:
    """From the dict that `memory_stats` returns; only the BFC allocator reports free blocks."""
    in_use, pool, limit = (_value(stats, name) for name in ("bytes_in_use", "pool_bytes", "bytes_limit"))
    known = in_use is not None and pool is not None and backend == BFC
    free = pool - in_use if known and pool is not None and in_use is not None else None
    largest = _value(stats, "largest_free_block_bytes") if free is not None else None
    if free and not largest:  # there is a free block, so XLA does not maintain this figure
        largest = None
    full = pool is not None and limit is not None and limit - pool < GRAIN
    return Sums(
        time=now,
        allocated=in_use,
        active=in_use,
        reserved=pool,
        peak_active=_value(stats, "peak_bytes_in_use"),
        peak_reserved=_value(stats, "peak_pool_bytes"),
        free_cached=free,
        largest_free_block=largest,
        free_total=free if full else None,  # JAX does not report what the driver would give to a pool that may grow
        largest_allocatable=largest if full else None,
    )


def _gpus() -> list[Any]:
    backends = dict(getattr(sys.modules.get(BRIDGE), "_backends", None) or {})
    return [device for name in PLATFORMS if name in backends for device in backends[name].local_devices()]


def _ordinal(device: Any) -> int:
    """Among the devices that this process sees; `id` counts over all hosts of a job."""
    local = getattr(device, "local_hardware_id", None)
    return int(device.id if local is None else local)


def _value(stats: Mapping[str, int], name: str) -> int | None:
    value = stats.get(name)
    return int(value) if value is not None and value >= 0 else None


def connect(framework: ModuleType, errors: ErrorCounter) -> JaxSource:
    return JaxSource(framework, errors)
