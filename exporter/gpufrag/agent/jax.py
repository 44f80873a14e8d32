"""JAX in this process: XLA's own figures for each GPU that the process has initialised itself.

No backend is initialised from here, which would preallocate most of a device: only the table of existing backends is
read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from ..wire.sample import Sums
from .sources import BareSource, DeviceReading

BRIDGE = "jax._src.xla_bridge"
"""Has `_backends`, by platform. Its public function takes a lock that is held while backends are created."""
PLATFORMS = ("cuda", "rocm", "gpu")
BFC = "bfc"
GRAIN = 2 << 20
"""Bytes. A pool that may grow by less takes no more memory from the driver."""


class JaxSource(BareSource):
    framework, function = "jax", "jax.Device.memory_stats"

    @property
    def backend(self) -> str:
        """XLA's allocator: bfc unless the user chose another (platform, cuda_async)."""
        chosen = self._environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower()
        return BFC if chosen in ("", "default") else chosen

    def _devices(self) -> list[Any]:
        backends = dict(getattr(sys.modules.get(BRIDGE), "_backends", None) or {})
        return [device for name in PLATFORMS if name in backends for device in backends[name].local_devices()]

    def _figures(self, device: Any) -> DeviceReading | None:
        """Device numbers are those of this process; `id` counts over all hosts of a job."""
        if not (stats := device.memory_stats()):
            return None
        local = getattr(device, "local_hardware_id", None)
        number = int(device.id if local is None else local)
        return DeviceReading(number, sums=sums(stats, time.time(), self.backend), limit=_value(stats, "bytes_limit"))


def sums(stats: Mapping[str, int], now: float, backend: str) -> Sums:
    """From the dict that `memory_stats` returns; only the BFC allocator reports free blocks."""
    in_use, pool, limit = (_value(stats, name) for name in ("bytes_in_use", "pool_bytes", "bytes_limit"))
    free = largest = None
    if in_use is not None and pool is not None and backend == BFC:
        free, largest = pool - in_use, _value(stats, "largest_free_block_bytes")
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


def _value(stats: Mapping[str, int], name: str) -> int | None:
    value = stats.get(name)
    return int(value) if value is not None and value >= 0 else None
