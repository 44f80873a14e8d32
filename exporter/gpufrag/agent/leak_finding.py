"""A leak in words: for the job's log."""

from __future__ import annotations

from ..errors import one_line
from ..model.leaks import Growth
from ..units import format_bytes
from ..wire.sample import Leak

UNKNOWN = "no Python stack (a backward pass, or from before the history)"


def finding(device: int, leak: Leak) -> str:
    """How much, how sure, since when, and what to do; one line."""
    low, rate, high = (format_bytes(round(value)) for value in (leak.low, leak.rate, leak.high))
    return one_line(
        f"device {device}: allocated memory grows by {rate} a {leak.unit} ({low} to {high}), seen from {leak.unit} "
        f"{leak.begin:.0f} to {leak.end:.0f}; look for tensors that are kept (a loss that is summed with its graph, a "
        "list, a cache); record the allocator's history to have the places named (docs/leaks.md)"
    )


def places(device: int, leak: Leak) -> str:
    """Where it grows most; one line."""
    told = (
        f"{format_bytes(place.grown)} in {place.blocks} blocks at {' < '.join(place.frames) or UNKNOWN}"
        for place in leak.stacks
    )
    return one_line(f"device {device}: between the last two snapshots grew {'; '.join(told)}")


def no_longer(device: int, unit: str, grew: Growth) -> str:
    """That what was called a leak has stopped; one line."""
    return one_line(
        f"device {device}: allocated memory has not grown since {unit} {grew.end:.0f}: that was no leak "
        "but something that filled (a cache, a buffer, shapes that are compiled one by one), unless it begins again"
    )
