"""TABLE: every metric of gpufrag. A new one is a row in one of the three files below, and nothing else."""

from __future__ import annotations

from typing import Any

from .allocator import ALLOCATOR
from .health import HEALTH
from .process import GPUS, OOMS, PROCESS
from .row import Metric

SECTIONS: dict[str, tuple[Metric[Any], ...]] = {
    "Allocator": ALLOCATOR,
    "Processes": PROCESS,
    "Out-of-memory errors": OOMS,
    "Devices": GPUS,
    "Health of gpufrag": HEALTH,
}

TABLE: tuple[Metric[Any], ...] = tuple(row for rows in SECTIONS.values() for row in rows)
