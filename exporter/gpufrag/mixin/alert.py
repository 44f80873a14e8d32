"""What an alert is, and the metrics that some of them still await."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

INFO, WARNING, CRITICAL = "info", "warning", "critical"

RESTART: Mapping[str, str] = {"gpufrag_action": "restart"}
"""The label by which the restarter's route picks an alert."""

AWAITED: Mapping[str, str] = {}
"""Metrics that rules name and metrics.TABLE has not, and what brings them. Until then such an expression is empty."""


@dataclass(frozen=True)
class Alert:
    """One alert, about one job. `summary` is one static sentence; `description` is a template with the figures."""

    name: str
    severity: str
    expr: str
    hold: float
    """Seconds for which `expr` must be true; 0: at once."""
    summary: str
    description: str
    keep_firing: float = 0.0
    """Seconds for which it goes on after `expr` has ended; for alerts that act."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
