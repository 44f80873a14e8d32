"""A defragmentation as it crosses processes: what was ordered, what one device's result is, and the sum of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from .codec import Most

REASONS = 16


@dataclass(frozen=True)
class DefragmentOptions:
    """What to do. `target_ratio`, `target_bytes`: when to stop; with neither, move everything that helps."""

    plan_only: bool = False
    """Move nothing; the result has what a move would achieve."""
    verify: bool = False
    """Compare a checksum of every storage before and after its move."""
    target_ratio: float | None = None
    target_bytes: int | None = None
    host_limit: int | None = None
    """Most bytes of host memory for copies; None: half of what is available."""
    allow_graphs: bool = False
    """Move even if the process has private pools. Captured graphs that read moved tensors then break."""
    time_limit: float | None = None
    """Seconds after which no further batch of moves starts."""


@dataclass(frozen=True)
class Result:
    """What a call moved, or would move, on one device. Sizes are bytes, times seconds; None is unknown."""

    device: int
    done: bool
    moved_bytes: int
    moved_storages: int
    seconds: float
    """How long the process paused."""
    expected_seconds: float
    """The estimated pause."""
    ratio_before: float | None
    ratio_after: float | None
    largest_allocatable_before: int | None
    largest_allocatable_after: int | None
    predicted_largest_allocatable: int | None
    stranded_before: int
    stranded_after: int
    host_bytes: int
    """Bytes that went through host memory, because the device had no room for the copies."""
    left: Annotated[dict[str, int], Most(REASONS)] = field(default_factory=dict)
    """Live blocks in fragmented segments that cannot move, counted by reason."""


@dataclass(frozen=True)
class Defragmentations:
    """All defragmentations of one device since the process started. The last two figures are of the latest one."""

    moved_bytes: int = 0
    seconds: float = 0.0
    refused: Annotated[dict[str, int], Most(REASONS)] = field(default_factory=dict)
    """Calls that were refused or failed, by reason."""
    largest_allocatable_before: int | None = None
    largest_allocatable_after: int | None = None
