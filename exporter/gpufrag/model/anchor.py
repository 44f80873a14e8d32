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
    """Return a quarter, half, three quarters and all of a peak of active bytes, as sizes that are easy to write.

    No share is best for most jobs, so several are tried. Sizes are whole GiB, below a peak of 4 GiB multiples of
    256 MiB, rounded down: an anchor above the limit is not reserved.
    """
    unit = GIB if peak >= 4 * GIB else 256 * MIB
    return sorted({peak * quarters // 4 // unit * unit for quarters in range(1, 5)} - {0})


def anchor_name(size: int) -> str:
    """Return `anchor:20GiB`: the size is a value for `gpufrag run --anchor`."""
    return f"anchor:{anchor_size(size)}"


def anchor_size(size: int) -> str:
    return f"{size // GIB}GiB" if size % GIB == 0 else f"{size // MIB}MiB"
