"""What is known about one failed allocation, and how much all free bytes together could have served."""

from __future__ import annotations

from dataclasses import dataclass

from .allocatable import Driver

CONTEXT = 1 << 30
"""Allowance for a process's own context and libraries, where their size is unknown."""


@dataclass(frozen=True)
class Facts:
    """Bytes at the failure, after the allocator's own flush and retry; None where unknown."""

    requested: int | None
    """What the allocator asked of the driver: torch rounds up to 2 MiB, and to 20 MiB for 1 to 10 MiB."""
    free_total: int | None = None
    largest_allocatable: int | None = None
    free_cached: int | None = None
    largest_free_block: int | None = None
    reclaimable: int | None = None
    captive: int | None = None
    headroom: int | None = None
    driver_free: int | None = None
    size: int | None = None
    limit: int | None = None
    """The per-process limit; the device's size if the process is known to have no limit."""
    reserved: int | None = None
    allocated: int | None = None
    active: int | None = None
    others: int | None = None
    """Memory of other processes on the device."""
    precision: int = 0
    """Largest rounding error of a figure: log messages print rounded sizes."""
    refused_by_limit: bool = False
    """Whether the allocator named the limit as the reason."""
    segment_space: int | None = None
    """The address space of an expandable segment, if the request is larger (torch >= 2.15)."""
    expandable: bool | None = None
    """Whether torch's expandable segments were on."""
    expandable_supported: bool = True
    """False if the build reported that it has no expandable segments."""
    allocator: str = "torch"
    """torch, mps, tensorflow, jax, or driver for the driver itself."""
    platform: str = "cuda"
    """cuda, hip, xpu or npu; empty if unknown."""

    @property
    def held(self) -> int | None:
        """Bytes that the allocator can give to no request: live blocks and private pools."""
        if self.reserved is not None and self.free_cached is not None:
            return self.reserved - self.free_cached
        return self.allocated if self.active is None else self.active

    @property
    def cached(self) -> int | None:
        """Free bytes of the cache, or their upper bound."""
        if self.free_cached is not None:
            return self.free_cached
        return None if self.reserved is None or self.held is None else max(0, self.reserved - self.held)

    @property
    def cap(self) -> int | None:
        return min([bound for bound in (self.limit, self.size) if bound is not None], default=None)

    @property
    def known_free(self) -> int | None:
        """free_total, or the part of it that is known: the cache and, if the driver's figure is known, the headroom."""
        if self.free_total is not None or self.cached is None:
            return self.free_total
        headroom = self.headroom
        if headroom is None and self.driver_free is not None:
            below_cap = self.driver_free if self.cap is None or self.reserved is None else self.cap - self.reserved
            headroom = max(0, min(self.driver_free, below_cap))
        return self.cached + (headroom or 0)

    @property
    def outside(self) -> int | None:
        """Used bytes outside this allocator: the process's own context, and other processes."""
        if self.size is None or self.driver_free is None or self.reserved is None:
            return None
        return max(0, self.size - self.driver_free - self.reserved)

    @property
    def unexplained(self) -> int | None:
        """Bytes neither free nor live, if the allocator's reserved bytes are unknown."""
        if self.reserved is not None or self.size is None or self.driver_free is None or self.held is None:
            return None
        return max(0, self.size - self.driver_free - self.held)

    @property
    def foreign(self) -> int:
        """Memory of other processes; if unknown, what exceeds CONTEXT outside this allocator."""
        return max(0, (self.outside or 0) - CONTEXT) if self.others is None else self.others

    @property
    def driver_room(self) -> int | None:
        """What the driver could serve if the whole cache went back to it."""
        return self.driver_room_with(0)

    def driver_room_with(self, given_back: int) -> int | None:
        """Return driver_room as if other processes also returned `given_back` bytes."""
        if self.driver_free is None or self.cached is None:
            return None
        return Driver.usable(self.driver_free + self.cached + given_back)

    def room_below(self, cap: int | None) -> int | None:
        """Return what could be served under a cap, wherever the free bytes lie."""
        return None if cap is None or self.held is None else max(0, cap - self.held)

    def ceiling(self, *, limit: bool = True, others: bool = True) -> int | None:
        """Return the most that all free bytes together could serve; None if unknown.

        limit, others: whether the limit, and the memory of other processes, count as obstacles.
        """
        bounds = [
            self.driver_room_with(0 if others else self.foreign),
            self.room_below(self.cap if limit else self.size),
            self.free_total if limit and others else None,
        ]
        known = [bound for bound in bounds if bound is not None]
        return max(min(known), self.cached or 0) if known else None
