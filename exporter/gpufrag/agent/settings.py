"""How often the agent samples and what it may cost. The only reader of the agent's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from ..errors import UsageError
from ..units import parse_bytes, parse_memory

SHORTEST, LONGEST = 0.001, 1e9
"""Seconds between two snapshots; the longest means never."""
SMALLEST = 1e-9
"""Share of wall time."""
LARGEST_ANCHOR = 0.9
"""Share of a device. Above it, the memory of the driver and of other libraries may no longer fit."""


@dataclass(frozen=True)
class AgentSettings:
    """All times in seconds."""

    interval: float = 10.0
    """Minimum time between two recordings or snapshots, GPUFRAG_INTERVAL. Ranks with the same interval pause in the
    same step."""
    budget: float = 0.001
    """The largest share of wall time that they may take, GPUFRAG_BUDGET."""
    publish_every: float = 1.0
    """How often the cheap figures are read and the file is replaced."""
    history_factor: float = 10.0
    """How much rarer snapshots are while the user records history: each leaves an entry in the user's history."""
    anchor: int | float | None = None
    """What to reserve of a device in one piece at its first use, GPUFRAG_ANCHOR: bytes, or a share (float); None: no
    anchor."""
    leak_threshold: int = 1_000_000
    """Bytes per step (per minute, without steps) above which growing memory is called a leak,
    GPUFRAG_LEAK_THRESHOLD."""
    folder: Path | None = None
    """None: GPUFRAG_DIR or the default (gpufrag.wire.folder)."""

    def __post_init__(self) -> None:
        if not SHORTEST <= self.interval <= LONGEST:
            raise UsageError(
                f"interval must be {SHORTEST:g} to {LONGEST:g} seconds, such as 10 (got {self.interval:g})"
            )
        if not SMALLEST <= self.budget <= 1:
            raise UsageError(
                f"budget must be a share of wall time from {SMALLEST:.9f} to 1, such as 0.001 (got {self.budget:g})"
            )
        if self.leak_threshold <= 0:
            raise UsageError(f"leak threshold must be above 0 bytes per step, such as 1MB (got {self.leak_threshold})")
        most = LARGEST_ANCHOR if isinstance(self.anchor, float) else float("inf")
        if self.anchor is not None and not 0 < self.anchor <= most:
            raise UsageError(
                f"anchor must be above 0 and at most {LARGEST_ANCHOR:.0%} of a device (got {self.anchor:.0%})"
            )


def from_environment(
    environment: Mapping[str, str] = os.environ,
    interval: float | None = None,
    budget: float | None = None,
    folder: Path | None = None,
) -> AgentSettings:
    """Arguments override the environment. Raises UsageError for an invalid value."""
    settings = AgentSettings(folder=folder)
    if text := environment.get("GPUFRAG_ANCHOR"):
        settings = replace(settings, anchor=anchor(text, "GPUFRAG_ANCHOR"))
    if text := environment.get("GPUFRAG_LEAK_THRESHOLD"):
        settings = replace(settings, leak_threshold=size(text, "GPUFRAG_LEAK_THRESHOLD"))
    for name, given in (("interval", interval), ("budget", budget)):
        variable = f"GPUFRAG_{name.upper()}"
        value = _number(environment.get(variable) or None, variable) if given is None else _number(given, name)
        if value is not None:
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
    return settings


def _number(value: Any, name: str) -> float | None:
    try:
        return None if value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name} must be a number (got {shortened(value)})") from None


def anchor(text: str, name: str) -> int | float:
    """Parse `20%` or `0.2` to a share, and `20GiB` to bytes. Raises UsageError with `name` in its message."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        share = None
    if share is not None and (share <= 1 or number != text.strip()):
        return share
    try:
        return parse_memory(text)
    except UsageError as error:
        raise UsageError(f"{name} must be a share of the device or a size, such as 20% or 20GiB: {error}") from None


def size(text: str, name: str) -> int:
    """Parse a size such as `2MB`. Raises UsageError with `name` in its message."""
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
