"""The recorded traces that the demo's ranks replay: requests to a real allocator on a GPU."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from importlib import resources

from ..model.allocatable import Driver
from ..model.settings import Settings, parse_recorded
from ..model.trace.events import parse_rows
from ..model.trace.program import Program
from ..model.trace.reading import read_program

NAMES = ("train-cap4", "cache-default")
"""By rank: a small decoder with varying lengths (healthy); a cache of odd sizes (fragmented)."""


@dataclass(frozen=True)
class Trace:
    name: str
    program: Program
    settings: Settings
    alloc_conf: str
    driver: Driver
    """The driver's reading before the first allocation."""


def load(name: str) -> Trace:
    packed = resources.files(__package__).joinpath(f"recorded/{name}.json.gz").read_bytes()
    case = json.loads(gzip.decompress(packed))
    settings = parse_recorded({**case["settings"], "torch": case.get("torch")})
    driver = Driver(case["driver_free_before"], case["driver_total"], case["cap_bytes"] or None)
    events = parse_rows(case["events"], case["events_columns"])
    return Trace(name, read_program(events, settings, driver.limit), settings, case["conf"], driver)
