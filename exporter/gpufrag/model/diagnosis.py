"""Whether a heap needs attention: fine, tune or act."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..units import format_bytes
from .fragmentation import Fragmentation

ACT_RATIO = 4.0
"""The restart alert's threshold."""
TUNE_RATIO = 2.0
NEARLY_FULL = 0.05
"""Free share of the limit below which a high ratio is not worth a restart."""
TUNE_SHARE, ACT_SHARE = 0.2, 0.4
"""Shares of reserved memory that is not in use."""


class Health(str, Enum):
    FINE = "fine"
    TUNE = "tune"
    ACT = "act"


class Assessment(NamedTuple):
    health: Health
    reason: str
    """One clause with the deciding figure."""


def assess(found: Fragmentation) -> Assessment:
    """Assess one device's heap: by its fragmentation ratio, or by its stranded share if the driver is unknown."""
    if found.largest_allocatable == 0:
        return Assessment(Health.ACT, "no further request can succeed")
    if found.ratio is None:
        return _assess_share(found)
    largest, free = format_bytes(found.largest_allocatable or 0), format_bytes(found.free_total or 0)
    reason = f"ratio {found.ratio:.2f}: the largest possible request is {largest}, of {free} free"
    if found.limit is not None and (found.free_total or 0) <= NEARLY_FULL * found.limit:
        return Assessment(Health.TUNE, f"less than {NEARLY_FULL:.0%} of the limit is free ({free}); {reason}")
    if found.ratio > ACT_RATIO:
        return Assessment(Health.ACT, reason)
    return Assessment(Health.TUNE if found.ratio > TUNE_RATIO else Health.FINE, reason)


def _assess_share(found: Fragmentation) -> Assessment:
    share = found.stranded / found.reserved if found.reserved else 0.0
    health = Health.ACT if share > ACT_SHARE else Health.TUNE if share > TUNE_SHARE else Health.FINE
    return Assessment(
        health, f"{share:.0%} of reserved memory is pinned between live blocks; the ratio needs the driver's figures"
    )
