"""The driver's figures as they were when the heap was copied."""

from __future__ import annotations

from ..model.allocatable import Driver
from ..model.heap import Heap
from .sources import DeviceReading


def driver_at(heap: Heap, reading: DeviceReading, limit: int | None) -> Driver:
    """The driver as it was when `heap` was copied.

    The reading comes a little after the copy: what the process itself took or gave back in between is undone.
    """
    if reading.driver is None:
        return Driver(limit=limit)
    free, size = reading.driver.free, reading.driver.size
    if reading.totals is not None:
        reserved = reading.totals.large.reserved + reading.totals.small.reserved
        free += reserved - sum(segment.size for segment in heap.segments)
    return Driver(min(max(0, free), size), size, limit)
