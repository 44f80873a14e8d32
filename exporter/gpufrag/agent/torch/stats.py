"""Torch's allocator statistics as Totals: the only place that knows their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...wire.sample import Counters, PoolTotals, Sums, Totals
from ..peak import Level
from ..sources import Live

Stats = Mapping[str, Any]
"""As torch.cuda.memory_stats_as_nested_dict gives it: family, then pool, then field."""

COUNTERS = {
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
    "stream_syncs": "num_sync_all_streams",
}
"""Ours and torch's name; torch has the last three from 2.3."""


class CounterMemory:
    """Turns counters that the user may reset (torch.cuda.reset_accumulated_memory_stats) into ones that never fall.

    What happened between the last reading and the reset is lost.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def update(self, stats: Stats) -> Counters:
        """Each counter since the process began; None for one that this torch has not."""
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
    """Bytes that the allocator holds, private pools included; 0 where torch does not tell."""
    return int(stats.get("reserved_bytes", {}).get("all", {}).get("current", 0))


def level(stats: Stats) -> Level | None:
    """None where this torch lacks one of its figures."""
    active, allocations = stats.get("active_bytes", {}).get("all"), stats.get("allocation", {}).get("all")
    if not active or not allocations:
        return None
    return Level(active["current"], allocations["allocated"], active["peak"])


def live(stats: Stats) -> Live | None:
    """None where this torch does not tell what is allocated."""
    allocated, allocations = (stats.get(family, {}).get("all", {}) for family in ("allocated_bytes", "allocation"))
    if "current" not in allocated:
        return None
    return Live(allocated["current"], allocations.get("current"))


def totals(stats: Stats, time: float, counters: Counters) -> Totals:
    """Raises KeyError for a key that this torch has not."""
    return Totals(
        time=time,
        large=_pool(stats, "large_pool"),
        small=_pool(stats, "small_pool"),
        peak_active=stats["active_bytes"]["all"]["peak"],
        peak_reserved=stats["reserved_bytes"]["all"]["peak"],
        counters=counters,
        private_pool_reserved=_private(stats),
    )


def sums(stats: Stats, time: float) -> Sums:
    """Of cudaMallocAsync: the driver's pool tells these six, and torch has 0 for all else. Raises KeyError."""
    return Sums(
        time=time,
        allocated=stats["allocated_bytes"]["all"]["current"],
        active=stats["active_bytes"]["all"]["current"],
        reserved=stats["reserved_bytes"]["all"]["current"],
        peak_active=stats["active_bytes"]["all"]["peak"],
        peak_reserved=stats["reserved_bytes"]["all"]["peak"],
    )


def _pool(stats: Stats, pool: str) -> PoolTotals:
    families = ("allocated", "active", "requested", "reserved", "inactive_split")
    return PoolTotals(**{family: stats[f"{family}_bytes"][pool]["current"] for family in families})


def _private(stats: Stats) -> int | None:
    """Torch tells it from 2.13, and only once a private pool has existed."""
    pools = stats.get("reserved_bytes_by_private_pools")
    return None if pools is None else sum(pool["all"]["current"] for pool in pools.values())
