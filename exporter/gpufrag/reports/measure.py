"""`gpufrag measure`: every quantity of a saved snapshot, a device at a time, as text or as JSON. No verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ..model.allocatable import Driver, limited
from ..model.fragmentation import SIZE_BOUNDS, Fragmentation, Pool, measure
from ..model.heap import ALLOCATED, Heap
from ..units import format_bytes
from .terminal import Emphasis


class Measured(NamedTuple):
    """One device of a snapshot: its heap, what was given of its driver, and the quantities that follow."""

    heap: Heap
    driver: Driver
    found: Fragmentation


def measured(heap: Heap, driver: Driver, stream: int | None = None) -> list[Measured]:
    """Every device of the heap, each with the same driver. An empty heap is one device that holds nothing.

    Where the driver has no limit, that of the heap's own settings (per_process_memory_fraction) counts.
    """
    parts = [heap.on_device(device) for device in heap.devices] or [heap]
    drivers = [limited(driver, part.settings) for part in parts]
    return [Measured(part, driver, measure(part, driver, stream)) for part, driver in zip(parts, drivers)]


def as_record(device: Measured) -> dict[str, Any]:
    """The form of --json: bytes, by names that stay. None is what the inputs cannot tell."""
    heap, _, found = device
    return {
        "device": found.device,
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
    """A page for people: aligned, in units and in bytes, ending with what could not be told and why."""
    found = device.found
    lines = [bold(f"device {found.device} of {name}, the next request on stream {found.stream}"), ""]
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
    """What no pool has for itself."""
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
    """The free blocks by size; buckets without a block are left out."""
    totals = [a + b for a, b in zip(found.large.free_block_sizes, found.small.free_block_sizes)]
    if any(totals):
        names = [f"up to {format_bytes(bound)}" for bound in SIZE_BOUNDS] + [f"above {format_bytes(SIZE_BOUNDS[-1])}"]
        yield _line(("free blocks by size", "blocks", "", ""))
        yield from (_line((name, str(count), "", "")) for name, count in zip(names, totals) if count)
        yield ""


def notes(device: Measured) -> Iterator[str]:
    """What the inputs cannot tell, and which flag would tell it."""
    heap, driver, found = device
    if driver.free is None and driver.limit is None:
        yield (
            "largest_allocatable and what follows from it need the driver's reading: add --driver-free and "
            "--driver-size, the two figures of torch.cuda.mem_get_info()"
        )
    elif driver.free is None:
        yield "without the driver's free memory, headroom and largest_allocatable are upper bounds: add --driver-free"
    elif found.limit is None:
        yield "the limit is not known: add --limit if the process has a memory fraction, else --driver-size"
    if found.largest_allocatable == 0:
        yield "nothing can be allocated, so there is no fragmentation_ratio"
    if heap.segments and found.stream not in {segment.stream for segment in heap.segments}:
        yield f"no block belongs to stream {found.stream}: only what the driver gives counts for it"
