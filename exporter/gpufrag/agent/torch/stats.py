"""Torch's allocator statistics as Totals. No other module uses their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...wire.sample import Counters, PoolTotals, Sums, Totals
from ..sources import Live

Stats = Mapping[str, Any]
"""What torch.cuda.memory_stats_as_nested_dict returns: family, then pool, then field."""

COUNTERS = {
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
    "stream_syncs": "num_sync_all_streams",
}
"""Our name -> torch's; the last three exist since torch 2.3."""


class CounterMemory:
    """Turns counters that the user may reset (torch.cuda.reset_accumulated_memory_stats) into ones that never fall.

    What happened between the last reading and the reset is lost.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def update(self, stats: Stats) -> Counters:
        """Each counter since the process began; None for one that this torch does not have."""
        return Counters(
            **{ours: self._total(theirs, stats[theirs]) for ours, theirs in COUNTERS.items() if theirs in stats}
        )

    def _total(self, name: str, value: int) -> int:
        last = self._last.get(name, 0)
        if value < last:
            self._before[name] = self._before.get(name, 0) + last
        self._last[name] = value
        return self._before.get(name, 0) + value


def reserved(stats: Stats) -> int:
    """Bytes that the allocator holds, private pools included; 0 if torch does not report it."""
    return _current(stats, "reserved_bytes") or 0


def active(stats: Stats) -> int | None:
    """Bytes in use, with those that wait for a stream; None if torch does not report it."""
    return _current(stats, "active_bytes")


def allocations(stats: Stats) -> int:
    """The number of requests so far, which the user may reset; 0 if torch does not report it."""
    return int(stats.get("allocation", {}).get("all", {}).get("allocated", 0))


def live(stats: Stats) -> Live | None:
    """None if torch does not report what is allocated."""
    allocated = _current(stats, "allocated_bytes")
    return None if allocated is None else Live(allocated, _current(stats, "allocation"))


def totals(stats: Stats, time: float, counters: Counters) -> Totals:
    """Raises KeyError for a key that this torch does not have."""
    pools = stats.get("reserved_bytes_by_private_pools")  # torch >= 2.13, once a private pool has existed
    return Totals(
        time=time,
        large=_pool(stats, "large_pool"),
        small=_pool(stats, "small_pool"),
        peak_active=stats["active_bytes"]["all"]["peak"],
        peak_reserved=stats["reserved_bytes"]["all"]["peak"],
        counters=counters,
        private_pool_reserved=None if pools is None else sum(pool["all"]["current"] for pool in pools.values()),
    )


def sums(stats: Stats, time: float) -> Sums:
    """For cudaMallocAsync, whose driver reports only these six figures. Raises KeyError."""
    return Sums(
        time=time,
        allocated=stats["allocated_bytes"]["all"]["current"],
        active=stats["active_bytes"]["all"]["current"],
        reserved=stats["reserved_bytes"]["all"]["current"],
        peak_active=stats["active_bytes"]["all"]["peak"],
        peak_reserved=stats["reserved_bytes"]["all"]["peak"],
    )


def _current(stats: Stats, family: str) -> int | None:
    value = stats.get(family, {}).get("all", {}).get("current")
    return None if value is None else int(value)


def _pool(stats: Stats, pool: str) -> PoolTotals:
    families = ("allocated", "active", "requested", "reserved", "inactive_split")
    return PoolTotals(**{family: stats[f"{family}_bytes"][pool]["current"] for family in families})
