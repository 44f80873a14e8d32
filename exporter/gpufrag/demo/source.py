"""A source of the agent whose framework is the simulated allocator, in place of torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ..agent.sources import Capture, DeviceFacts, DeviceReading
from ..model.simulator.allocator import Allocator
from ..wire.sample import Counters, DriverReading, PoolTotals, Totals

DEVICE = 0


class SimulatedSource:
    """Reads `allocator` under `lock`, which the replay also holds."""

    framework = "simulator"
    framework_version = None

    def __init__(self, allocator: Allocator, lock: threading.Lock, uuid: str, alloc_conf: str) -> None:
        self._allocator, self._lock, self._uuid, self._alloc_conf = allocator, lock, uuid, alloc_conf
        self._on_step: Callable[[object], None] | None = None

    def facts(self, device: int) -> DeviceFacts:
        return DeviceFacts(backend="native", uuid=self._uuid)

    def read(self) -> Sequence[DeviceReading]:
        with self._lock:
            return [self._reading()] if self._allocator.reserved else []

    def capture(self) -> Capture | None:
        with self._lock:
            heap = self._allocator.heap()
            limit = self._allocator.driver.limit
            limits = {} if limit is None else {DEVICE: limit}
            return Capture(lambda: heap, [self._reading()], limits, self._alloc_conf)

    def history_in_use(self) -> bool:
        return False

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        self._on_step = on_step
        return True

    def graph_underway(self) -> bool:
        return False

    def close(self) -> None:
        self._on_step = None

    def step(self) -> None:
        """End a step, like an optimizer's hook."""
        if self._on_step is not None:
            self._on_step(self)

    def _reading(self) -> DeviceReading:
        now = time.time()
        allocator, driver = self._allocator, self._allocator.driver
        known = driver.free is not None and driver.size is not None
        totals = Totals(
            time=now,
            large=PoolTotals(**allocator.totals(small=False)._asdict()),
            small=PoolTotals(**allocator.totals(small=True)._asdict()),
            peak_active=allocator.peak_active,
            peak_reserved=allocator.peak_reserved,
            counters=Counters(**vars(allocator.counters)),
            private_pool_reserved=allocator.private_reserved(),
        )
        return DeviceReading(DEVICE, totals, DriverReading(now, driver.free or 0, driver.size or 0) if known else None)
