"""The figures of a failed request as short sentences."""

from __future__ import annotations

from collections.abc import Iterator

from ..units import format_bytes
from .facts import Facts


def told(facts: Facts) -> dict[str, str]:
    """The figures that rules name in their reasons."""
    total = facts.cached if facts.ceiling() is None else facts.ceiling()
    sizes = {
        "need": facts.requested,
        "total": total,
        "driver": facts.driver_free,
        "limit": facts.limit,
        "foreign": facts.foreign,
        "unexplained": facts.unexplained,
    }
    return {name: "an unknown amount" if size is None else format_bytes(size) for name, size in sizes.items()}


FIGURES = (
    ("largest_allocatable", "the largest request that would have succeeded is {}"),
    ("largest_free_block", "the largest free block is {}"),
    ("free_cached", "the allocator's cache holds {} free"),
    ("captive", "{} lies free in private pools (CUDA graphs, MemPool), which alone can use it"),
    ("driver_free", "the driver has {} free"),
    ("size", "the device has {}"),
    ("limit", "this process may hold {}"),
    ("reserved", "the allocator holds {}"),
    ("allocated", "live tensors take {}"),
    ("others", "other processes hold {}"),
)
"""The further evidence, as far as it is known."""


def figures(facts: Facts) -> Iterator[str]:
    for name, text in FIGURES:
        size = getattr(facts, name)
        if size is not None and (size or name not in ("captive", "others")):
            yield text.format(format_bytes(size))
