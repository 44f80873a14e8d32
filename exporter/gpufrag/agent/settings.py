"""How often the agent looks, and what it may cost. The only reader of the agent's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from ..errors import UsageError
from ..units import parse_bytes

SHORTEST, LONGEST = 0.001, 1e9
"""Seconds between two snapshots. The longest are some thirty years: never, for a job."""
SMALLEST = 1e-9
"""Share of wall time: a snapshot of some milliseconds in as many months."""
LARGEST_ANCHOR = 0.9
"""Above it the driver's own memory and a second library's may no longer fit."""


@dataclass(frozen=True)
class AgentSettings:
    """All times in seconds."""

    interval: float = 10.0
    """The least time between two snapshots, GPUFRAG_INTERVAL. Ranks with one interval pause in one step."""
    budget: float = 0.001
    """The largest share of wall time that snapshots may take, GPUFRAG_BUDGET."""
    publish_every: float = 1.0
    """The cheap figures are read, and the file is replaced, this often."""
    history_factor: float = 10.0
    """So much rarer are snapshots while the user records history: each leaves an entry in the user's ring."""
    anchor: float | None = None
    """The share of a device that is reserved in one piece at its first use, GPUFRAG_ANCHOR; None: no anchor."""
    leak_threshold: int = 1_000_000
    """Bytes a step (a minute, without steps) from which on growing memory is called a leak, GPUFRAG_LEAK_THRESHOLD."""
    folder: Path | None = None
    """None: as GPUFRAG_DIR and the defaults have it (gpufrag.wire.folder)."""

    def __post_init__(self) -> None:
        if not SHORTEST <= self.interval <= LONGEST:
            raise UsageError(
                f"interval is {self.interval}: it must be from {SHORTEST:g} to {LONGEST:g} seconds, such as 10"
            )
        if not SMALLEST <= self.budget <= 1:
            raise UsageError(
                f"budget is {self.budget}: it must be a share of wall time from {SMALLEST:g} to 1, such as 0.001"
            )
        if self.leak_threshold <= 0:
            raise UsageError(f"leak threshold is {self.leak_threshold}: it must be bytes a step above 0, such as 1MB")
        if self.anchor is not None and not 0 < self.anchor <= LARGEST_ANCHOR:
            raise UsageError(
                f"anchor is {self.anchor:.0%}: it must be above 0 and up to {LARGEST_ANCHOR:.0%} of a device"
            )


def from_environment(
    environment: Mapping[str, str] = os.environ,
    interval: float | None = None,
    budget: float | None = None,
    folder: Path | None = None,
) -> AgentSettings:
    """What the caller says wins over the environment. Raises UsageError for a value that is none."""
    settings = AgentSettings(anchor=_anchor(environment.get("GPUFRAG_ANCHOR", "")), folder=folder)
    if text := environment.get("GPUFRAG_LEAK_THRESHOLD"):
        settings = replace(settings, leak_threshold=size(text, "GPUFRAG_LEAK_THRESHOLD"))
    for name, given in (("interval", interval), ("budget", budget)):
        variable = f"GPUFRAG_{name.upper()}"
        value = _number(environment.get(variable) or None, variable) if given is None else _number(given, name)
        if value is not None:
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
    return settings


def _number(value: Any, name: str) -> float | None:
    """Of a variable or an argument, whatever a program hands over."""
    try:
        return None if value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name} is {shown(value)}: it must be a number") from None


def share(text: str) -> float:
    """`20%` or `0.2` -> 0.2. Raises ValueError for what is neither."""
    number = text.strip().removesuffix("%")
    return float(number) / (100 if number != text.strip() else 1)


def size(text: str, name: str) -> int:
    """`2MB` -> 2000000. Raises UsageError, which says that it was said by `name`."""
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _anchor(text: str) -> float | None:
    try:
        return share(text) if text else None
    except ValueError:
        raise UsageError(f"GPUFRAG_ANCHOR is {text!r}: it must be a share of the device, such as 20%") from None
