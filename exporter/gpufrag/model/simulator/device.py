"""The simulated driver: how much memory there is, and which segments are mapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..allocatable import Driver
from ..trace.events import Event
from .addresses import AddressSpace
from .blocks import Arena, Ordering


@dataclass
class Counters:
    """Torch's counters since the allocator started."""

    alloc_retries: int = 0
    ooms: int = 0
    device_allocs: int = 0
    device_frees: int = 0
    stream_syncs: int = 0


class Device:
    """Provides memory and addresses to the allocator, and takes memory back.

    before: the driver's reading before the allocator's first request. observe: called with each call, as an event that
    torch would record.
    """

    def __init__(
        self, before: Driver, addresses: AddressSpace, ordering: Ordering, observe: Callable[[Event], None] | None
    ) -> None:
        self.limit = before.limit
        self.counters = Counters()
        self.reserved = 0
        self.peak_reserved = 0
        self.addresses = addresses
        self.ordering = ordering
        self.capacity = before.free
        """Driver memory for this process, used and free, in bytes; None if unknown."""
        self._before = before
        self._observe = observe

    @property
    def driver(self) -> Driver:
        """Return the driver's reading now."""
        free = None if self.capacity is None else max(0, self.capacity - self.reserved)
        return replace(self._before, free=free)

    def allows(self, size: int) -> bool:
        """Return whether the process's limit allows `size` more bytes."""
        return self.limit is None or self.reserved + size <= self.limit

    def holds(self, size: int, freed: int = 0) -> bool:
        """Return whether the driver can provide `size` more bytes, once `freed` bytes are released."""
        return self.capacity is None or size <= Driver.usable(self.capacity - self.reserved + freed)

    def give(self, arena: Arena, address: int, size: int) -> None:
        self.counters.device_allocs += 1
        arena.reserved += size
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._notify("segment_alloc" if arena.pool.page is None else "segment_map", arena, address, size)

    def take_over(self, arena: Arena, address: int, size: int) -> None:
        """Add memory that existed before the simulation; this counts no call."""
        arena.reserved += size
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        if arena.pool.page is None:
            self.addresses.take_at(address, size)

    def take_back(self, arena: Arena, address: int, size: int) -> None:
        self.counters.device_frees += 1
        arena.reserved -= size
        self.reserved -= size
        self._notify("segment_free" if arena.pool.page is None else "segment_unmap", arena, address, size)

    def _notify(self, action: str, arena: Arena, address: int, size: int) -> None:
        if self._observe is not None:
            self._observe(Event(action, address, size, arena.stream, arena.pool.id))
