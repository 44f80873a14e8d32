"""The heap at an out-of-memory error, measured, and the facts for the verdict."""

from __future__ import annotations

from typing import NamedTuple

from ..model.fragmentation import Fragmentation, measure
from ..model.verdict import Facts
from .driver_then import driver_at
from .sources import Capture, DeviceReading, Fault


class Look(NamedTuple):
    """The device's heap just then, and the reading that belongs to it."""

    measured: Fragmentation
    reading: DeviceReading
    expandable: bool
    alloc_conf: str | None


def look(capture: Capture, device: int) -> Look | None:
    """None where the capture has nothing of that device. Raises what an unknown form of the heap raises."""
    reading = next((reading for reading in capture.readings if reading.device == device), None)
    if reading is None:
        return None
    heap = capture.heap()
    own = heap.on_device(device)
    measured = measure(own, driver_at(own, reading, capture.limits.get(device)))
    return Look(measured, reading, heap.settings.expandable_segments, capture.alloc_conf)


def facts(fault: Fault, seen: Look | None) -> Facts:
    """What is known of the failed request: all, or no more than torch itself has told."""
    if seen is None:
        return Facts(requested=fault.requested, driver_free=fault.driver_free)
    found, driver = seen.measured, seen.reading.driver
    return Facts(
        requested=fault.requested,
        free_total=found.free_total,
        largest_allocatable=found.largest_allocatable,
        free_cached=found.free_cached,
        largest_free_block=found.largest_free_block,
        reclaimable=found.reclaimable,
        captive=found.captive,
        headroom=found.headroom,
        driver_free=driver.free if driver else fault.driver_free,
        size=driver.size if driver else None,
        limit=found.limit,
        reserved=found.reserved,
        allocated=found.large.allocated + found.small.allocated,
        active=found.large.active + found.small.active,
        expandable=seen.expandable,
    )
