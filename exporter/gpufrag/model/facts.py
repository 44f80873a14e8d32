"""What is known of one failed request for memory, and what the free bytes could have served at most."""

from __future__ import annotations

from dataclasses import dataclass

from .allocatable import Driver

CONTEXT = 1 << 30
"""A process's own context and libraries, outside its allocator, are taken to hold at most this."""


@dataclass(frozen=True)
class Facts:
    """In bytes, None where unknown, at the failure: after the allocator's own flush and retry."""

    requested: int | None
    """What the driver was asked for: torch's own figure, rounded up to 2 MiB, or 20 MiB for 1 to 10 MiB."""
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
    """The process's cap; where it is known that there is none, the device's size."""
    reserved: int | None = None
    allocated: int | None = None
    active: int | None = None
    others: int | None = None
    """Memory of other processes on the device."""
    precision: int = 0
    """By how much each figure may be wrong, as those of a text are: they are rounded."""
    refused_by_limit: bool = False
    """The allocator said itself that the cap was the reason."""
    expandable: bool | None = None
    """Whether torch's expandable segments were on."""
    allocator: str = "torch"
    """Whose it is: torch (on CUDA, HIP or XPU), mps, tensorflow, jax, or the driver itself."""

    @property
    def held(self) -> int | None:
        """What the allocator can give to no request: live blocks, and all that private pools hold."""
        if self.reserved is not None and self.free_cached is not None:
            return self.reserved - self.free_cached
        return self.allocated if self.active is None else self.active

    @property
    def cached(self) -> int | None:
        """The free bytes of the cache, or the most that they can be."""
        if self.free_cached is not None:
            return self.free_cached
        return None if self.reserved is None or self.held is None else max(0, self.reserved - self.held)

    @property
    def cap(self) -> int | None:
        return min([bound for bound in (self.limit, self.size) if bound is not None], default=None)

    @property
    def known_free(self) -> int | None:
        """free_total, or what is known of it: the cache and, where the driver has told, the headroom."""
        if self.free_total is not None or self.cached is None:
            return self.free_total
        return self.cached + (self._known_headroom or 0)

    @property
    def _known_headroom(self) -> int | None:
        if self.headroom is not None or self.driver_free is None:
            return self.headroom
        below_cap = None if self.cap is None or self.reserved is None else self.cap - self.reserved
        return self.driver_free if below_cap is None else max(0, min(self.driver_free, below_cap))

    @property
    def outside(self) -> int | None:
        """Used bytes that are not this allocator's: the process's own context, or other processes."""
        if self.size is None or self.driver_free is None or self.reserved is None:
            return None
        return max(0, self.size - self.driver_free - self.reserved)

    @property
    def unexplained(self) -> int | None:
        """Neither free nor live, where the allocator does not say what it holds."""
        if self.reserved is not None or self.size is None or self.driver_free is None or self.held is None:
            return None
        return max(0, self.size - self.driver_free - self.held)

    @property
    def foreign(self) -> int:
        """What other processes hold; where nobody has told, what no context of this process accounts for."""
        return max(0, (self.outside or 0) - CONTEXT) if self.others is None else self.others

    @property
    def driver_room(self) -> int | None:
        """What the driver could serve if the whole cache went back to it."""
        return self.driver_room_with(0)

    def driver_room_with(self, given_back: int) -> int | None:
        """The same, had `given_back` bytes of other processes gone back too."""
        if self.driver_free is None or self.cached is None:
            return None
        return Driver.usable(self.driver_free + self.cached + given_back)

    def room_below(self, cap: int | None) -> int | None:
        """What could be served under a cap, wherever the free bytes lie."""
        return None if cap is None or self.held is None else max(0, cap - self.held)

    def ceiling(self, *, limit: bool = True, others: bool = True) -> int | None:
        """What all free bytes together could serve at most, by what is known; None where nothing tells.

        limit, others: whether the cap, and the memory of other processes, stands in the way.
        """
        bounds = [
            self.driver_room_with(0 if others else self.foreign),
            self.room_below(self.cap if limit else self.size),
            self.free_total if limit and others else None,
        ]
        known = [bound for bound in bounds if bound is not None]
        return max(min(known), self.cached or 0) if known else None
