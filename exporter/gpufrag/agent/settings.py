"""How often the agent looks, and what it may cost. The only reader of the agent's environment variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError


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
    folder: Path | None = None
    """None: as GPUFRAG_DIR and the defaults have it (gpufrag.folder)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.interval) and self.interval > 0):
            raise UsageError(f"interval is {self.interval}: it must be a number of seconds above 0, such as 10")
        if not 0 < self.budget <= 1:
            raise UsageError(
                f"budget is {self.budget}: it must be a share of wall time above 0 and up to 1, such as 0.001"
            )


def from_environment(
    environment: Mapping[str, str] = os.environ,
    interval: float | None = None,
    budget: float | None = None,
    folder: Path | None = None,
) -> AgentSettings:
    """What the caller says wins over the environment. Raises UsageError for a value that is none."""
    settings = AgentSettings(folder=folder)
    for name, given in (("interval", interval), ("budget", budget)):
        value = _number(environment, f"GPUFRAG_{name.upper()}") if given is None else given
        if value is not None:
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
    return settings


def _number(environment: Mapping[str, str], variable: str) -> float | None:
    text = environment.get(variable)
    try:
        return float(text) if text else None
    except ValueError:
        raise UsageError(f"{variable} is {text!r}: it must be a number") from None
