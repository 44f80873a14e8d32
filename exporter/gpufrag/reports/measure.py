"""`gpufrag measure`: every quantity of a saved snapshot, per device, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ..model.allocatable import Driver, limited
from ..model.diagnosis import assess
from ..model.fragmentation import SIZE_BOUNDS, Fragmentation, Pool, measure
from ..model.heap import ALLOCATED, Heap
from ..units import format_bytes
from .terminal import Emphasis


class Measured(NamedTuple):
    """One device of a snapshot: its heap, its driver's figures as far as known, and the resulting quantities."""

    heap: Heap
    driver: Driver
    found: Fragmentation


def measured(heap: Heap, driver: Driver, stream: int | None = None) -> list[Measured]:
    """Measure every device of the heap, each with the same driver. An empty heap is one device without memory.

    If the driver has no limit, the heap's own settings (per_process_memory_fraction) apply.
    """
    parts = [heap.on_device(device) for device in heap.devices] or [heap]
    drivers = [limited(driver, part.settings) for part in parts]
    return [Measured(part, driver, measure(part, driver, stream)) for part, driver in zip(parts, drivers)]


def as_record(device: Measured) -> dict[str, Any]:
    """Return one object of --json: sizes in bytes, None if unknown."""
    heap, _, found = device
    assessment = assess(found)
    return {
        "device": found.device,
        "verdict": assessment.health.value,
        "reason": assessment.reason,
        "stream": found.stream,
        "reserved": found.reserved,
        "unused_share": _unused_share(heap, found),
        "limit": found.limit,
        "headroom": found.headroom,
        "free_cached": found.free_cached,
        "reclaimable": found.reclaimable,
        "stranded": found.stranded,
        "free_total": found.free_total,
        "largest_free_block": found.largest_free_block,
        "largest_allocatable": found.largest_allocatable,
        "fragmentation_ratio": found.ratio,
        "cache_ratio": found.cache_ratio,
        "private_pool_reserved": found.private_pool_reserved,
        "captive": found.captive,
        "notes": list(notes(device)),
        "pools": {"large": _pool_record(found.large), "small": _pool_record(found.small)},
    }


def _pool_record(pool: Pool) -> dict[str, Any]:
    bounds = (*SIZE_BOUNDS, None)
    sizes = [{"up_to": bound, "blocks": count} for bound, count in zip(bounds, pool.free_block_sizes)]
    return asdict(pool) | {"stranded": pool.stranded, "free_block_sizes": sizes}


def _unused_share(heap: Heap, found: Fragmentation) -> float | None:
    live = sum(size for s in heap.segments for size, state in zip(s.sizes, s.states) if state is ALLOCATED)
    return (found.reserved - live) / found.reserved if found.reserved else None


def as_text(device: Measured, name: str, bold: Emphasis = str) -> str:
    """Return a table in units and bytes, the verdict first, notes on unknown figures last."""
    found = device.found
    assessment = assess(found)
    lines = [bold(f"device {found.device} of {name}, next request on stream {found.stream}")]
    lines += [bold(f"{assessment.health.value}: {assessment.reason}"), ""]
    lines += _table(_pool_rows(found.large, found.small), bold)
    lines += ["", *_sums(device), "", *_sizes(found)]
    lines += [f"note: {note}" for note in notes(device)]
    return "\n".join(lines).rstrip()


def _pool_rows(large: Pool, small: Pool) -> Iterator[Sequence[str]]:
    yield "by pool", "large", "small", "both, bytes"
    names = (
        "reserved", "allocated", "active", "requested", "inactive_split", "free_cached", "awaiting_free",
        "reclaimable", "stranded",
    )  # fmt: skip
    for name in names:
        yield _row(name, getattr(large, name), getattr(small, name), getattr(large, name) + getattr(small, name))
    for name in ("largest_free_block", "largest_active_block"):
        yield _row(name, getattr(large, name), getattr(small, name), max(getattr(large, name), getattr(small, name)))
    for name in ("segments", "active_blocks", "awaiting_blocks", "inactive_blocks"):
        yield name, str(getattr(large, name)), str(getattr(small, name)), ""


def _row(name: str, large: int, small: int, both: int) -> Sequence[str]:
    return name, format_bytes(large), format_bytes(small), f"{both:,}"


def _table(rows: Iterator[Sequence[str]], bold: Emphasis) -> Iterator[str]:
    head, *rest = rows
    yield bold(_line(head))
    yield from map(_line, rest)


def _line(cells: Sequence[str]) -> str:
    name, *values = cells
    return f"  {name:<24}{values[0]:>12}{values[1]:>12}{values[2]:>19}".rstrip()


_SUMS = ("private_pool_reserved", "captive", "limit", "headroom", "free_total", "largest_allocatable")


def _sums(device: Measured) -> Iterator[str]:
    """Quantities of the whole device."""
    found = device.found
    sizes = {"reserved, all pools": found.reserved, **{name: getattr(found, name) for name in _SUMS}}
    for name, size in sizes.items():
        shown = ("unknown", "") if size is None else (format_bytes(size), f"{size:,}")
        yield _line((name, shown[0], "", shown[1]))
    unused = _unused_share(device.heap, found)
    for name, ratio in (
        ("fragmentation_ratio", found.ratio),
        ("cache_ratio", found.cache_ratio),
        ("unused_share", unused),
    ):
        yield _line((name, "unknown" if ratio is None else f"{ratio:.2f}", "", ""))


def _sizes(found: Fragmentation) -> Iterator[str]:
    """Free blocks by size, without empty buckets."""
    totals = [a + b for a, b in zip(found.large.free_block_sizes, found.small.free_block_sizes)]
    if any(totals):
        names = [f"up to {format_bytes(bound)}" for bound in SIZE_BOUNDS] + [f"above {format_bytes(SIZE_BOUNDS[-1])}"]
        yield _line(("free blocks by size", "blocks", "", ""))
        yield from (_line((name, str(count), "", "")) for name, count in zip(names, totals) if count)
        yield ""


def notes(device: Measured) -> Iterator[str]:
    """Yield what is unknown or doubtful, and which flag helps."""
    heap, driver, found = device
    if driver.free is None and driver.limit is None:
        unknown = [name for name in _SUMS if getattr(found, name) is None]
        yield (
            f"unknown: {', '.join(unknown)}, fragmentation_ratio; add --driver-free and --driver-size (both from "
            "torch.cuda.mem_get_info()), and --limit if the process has a memory limit"
        )
    elif driver.free is None:
        yield "headroom and largest_allocatable are upper bounds without the driver's free memory; add --driver-free"
    elif found.limit is None:
        yield "the limit is unknown; add --limit if the process has one, else --driver-size"
    if found.largest_allocatable == 0:
        yield "nothing can be allocated, so there is no fragmentation_ratio"
    if found.limit is not None and found.limit < found.reserved:
        yield (
            f"the limit ({format_bytes(found.limit)}) is below the {format_bytes(found.reserved)} that the process has "
            "reserved; check --limit and --driver-size"
        )
    if heap.segments and found.stream not in {segment.stream for segment in heap.segments}:
        yield f"no block belongs to stream {found.stream}: only the driver can serve it"
