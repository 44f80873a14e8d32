"""What crosses from a training process to its readers after an out-of-memory error: one OomReport, one line of JSON.

The process writes it down before the error is raised, into a file of its own that outlives it. As with a sample,
`schema` is the version of these records: a reader refuses a newer one and passes over keys that it does not know.
Memory is in bytes, times are in seconds of the system clock; what could not be read is None, never 0 or -1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..errors import one_line
from ..model.fragmentation import Fragmentation
from ..units import format_bytes
from . import codec as json_record
from .sample import DriverReading, Identity, Totals

SCHEMA = 1
MAX_BYTES = 128 << 10  # a file above this is not ours


@dataclass(frozen=True)
class Frame:
    """A place in the program; no source text, which may hold secrets."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Point:
    """The device's cheap figures as one of the samples before the error had them."""

    time: float
    reserved: int | None = None
    allocated: int | None = None
    active: int | None = None
    driver_free: int | None = None


@dataclass(frozen=True)
class OomReport:
    """One out-of-memory error: what was asked for, why it could not be had, and all that was known just then."""

    identity: Identity
    number: int
    """1 for the first report of its process."""
    time: float
    device: int
    requested: int
    """What the allocator asked the driver for: the program's request rounded up to a segment's size."""
    cause: str
    """A value of model.verdict.Cause."""
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What would have to be known to be sure."""
    next_step: str = ""
    measured: Fragmentation | None = None
    """Every quantity of the heap as it was then: after the allocator had given back all that it could."""
    totals: Totals | None = None
    driver: DriverReading | None = None
    alloc_conf: str | None = None
    steps: int | None = None
    """Optimizer steps up to the last sample; None where the process has no step hook."""
    stack: tuple[Frame, ...] = ()
    """Innermost first."""
    stack_of: str = "thread"
    """`thread`: of the one that asked. `main`: that one runs no Python (a backward pass), so of the main thread."""
    recent: tuple[Point, ...] = ()
    """The last samples, oldest first."""
    snapshot_seconds: float = 0.0
    """For how long copying the heap held the process."""
    explain_seconds: float = 0.0
    """For how long all the rest did, up to the writing of this."""
    schema: int = SCHEMA

    @property
    def id(self) -> str:
        """By which people name it: short, and unique in one pid namespace for a day."""
        return f"{self.identity.pid}-{self.number}"

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the program itself: torch's own Python is passed over."""
        own = (frame for frame in self.stack if "-packages/torch/" not in frame.file)
        return next(own, None) or next(iter(self.stack), None)


def encode(report: OomReport) -> bytes:
    """One line of JSON. Raises ValueError for a figure that is infinite or not a number."""
    return json.dumps(report, default=vars, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(data: bytes) -> OomReport:
    """Raises BadInput for what is not a report, NewerVersion for one of a newer gpufrag."""
    return json_record.decode(OomReport, data, "report", SCHEMA, MAX_BYTES)


def headline(report: OomReport) -> str:
    """One line: what happened, the figures that tell most, where, and what to do."""
    largest = report.measured.largest_allocatable if report.measured else None
    place = report.place
    parts = (
        f"out of memory on device {report.device}: {report.cause}",
        f"{format_bytes(report.requested)} were asked for",
        None if largest is None else f"the largest request that would have succeeded is {format_bytes(largest)}",
        f"at {place.file}:{place.line} in {place.function}" if place else None,
        f"next: {report.next_step}",
    )
    return one_line("; ".join(part for part in parts if part))
