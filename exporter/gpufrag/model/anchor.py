"""The anchor of `gpufrag run --anchor`: when it is reserved, and which sizes to try in a what-if."""

from __future__ import annotations

from .settings import GIB, MIB, Settings

GRID = 2 * MIB  # of torch's segments
SMALLEST = 20 * MIB
"""Torch keeps smaller segments for smaller requests."""


def settings_obstacle(settings: Settings) -> str | None:
    """Why an anchor would be useless or harmful under these settings, or None."""
    if settings.expandable_segments:
        return "expandable segments already are one piece that grows: an anchor would only hold memory"
    if settings.max_split_size is not None:
        return "max_split_size does not allow carving a large block: most requests could not use the anchor"
    return None


def sizes_to_try(peak: int) -> list[int]:
    """Return about a quarter, half, three quarters and all of a peak of active bytes, in bytes.

    No share is best for most jobs, so several are tried. Sizes are rounded down, because an anchor above the limit is
    not reserved: to one of four sizes between two powers of two, so that steps of varying length give few names, and to
    a multiple of 256 MiB.
    """
    return sorted({_round_down(peak * quarters // 4) for quarters in range(1, 5)} - {0})


def _round_down(size: int) -> int:
    unit = max(256 * MIB, 1 << max(size.bit_length() - 3, 0))
    return size // unit * unit


def anchor_name(size: int) -> str:
    """Return `anchor:20GiB`: the size is a value for `gpufrag run --anchor`."""
    return f"anchor:{anchor_size(size)}"


def anchor_size(size: int) -> str:
    return f"{size // GIB}GiB" if size % GIB == 0 else f"{size // MIB}MiB"
