"""An OOM report: one file with one line of JSON for each out-of-memory error.

The process writes it before the error is raised, and the file outlives the process. `schema` is the version of these
records: a reader refuses a newer one and ignores unknown keys. Memory is in bytes, times are in seconds of the system
clock; an unknown figure is None, never 0 or -1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..errors import one_line
from ..model.fragmentation import Fragmentation
from ..units import format_bytes
from . import codec as json_record
from .sample import DriverReading, Identity, Snapshot, Totals

SCHEMA = 1
MAX_BYTES = 128 << 10  # an agent writes no larger file


@dataclass(frozen=True)
class Frame:
    """A place in the program, without source text, which may contain secrets."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Point:
    """The device's cheap figures in one sample before the error."""

    time: float
    reserved: int | None = None
    allocated: int | None = None
    active: int | None = None
    driver_free: int | None = None


@dataclass(frozen=True)
class OomReport:
    """One out-of-memory error: the request, why it failed, and the state at that moment."""

    identity: Identity
    number: int
    """1 for the process's first report."""
    time: float
    device: int
    requested: int
    """The size the allocator asked the driver for: the program's request, rounded up to a segment."""
    cause: str
    """A value of model.verdict.Cause."""
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Facts that are missing for a certain cause."""
    next_step: str = ""
    measured: Fragmentation | None = None
    """The heap at that moment, after the allocator had released what it could."""
    totals: Totals | None = None
    driver: DriverReading | None = None
    alloc_conf: str | None = None
    steps: int | None = None
    """Optimizer steps up to the last sample; None without a step hook."""
    stack: tuple[Frame, ...] = ()
    """Innermost first."""
    stack_of: str = "thread"
    """`thread`: of the requesting thread. `main`: that one runs no Python (a backward pass), so of the main thread."""
    recent: tuple[Point, ...] = ()
    """The last samples, oldest first."""
    last_peak: Snapshot | None = None
    """The memory peak of the step recorded last; None without a recording."""
    snapshot_seconds: float = 0.0
    """How long copying the heap stalled the process."""
    explain_seconds: float = 0.0
    """How long the rest stalled it, up to writing this file."""
    schema: int = SCHEMA

    @property
    def id(self) -> str:
        """A short name for people, unique in one pid namespace for about a day."""
        return f"{self.identity.pid}-{self.number}"

    @property
    def place(self) -> Frame | None:
        """The innermost frame that is not in torch itself."""
        own = (frame for frame in self.stack if "-packages/torch/" not in frame.file)
        return next(own, None) or next(iter(self.stack), None)


def encode(report: OomReport) -> bytes:
    """Return one line of JSON. Raises ValueError for an infinite figure or NaN."""
    return json.dumps(report, default=vars, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(data: bytes) -> OomReport:
    """Raises BadInput for an invalid report, NewerVersion for one of a newer gpufrag."""
    return json_record.decode(OomReport, data, "report", SCHEMA, MAX_BYTES)


def headline(report: OomReport) -> str:
    """Return one line: what happened, the main figures, where, and what to do."""
    largest = report.measured.largest_allocatable if report.measured else None
    place = report.place
    parts = (
        f"out of memory on device {report.device}: {report.cause}",
        f"{format_bytes(report.requested)} requested",
        None if largest is None else f"the largest request that would succeed is {format_bytes(largest)}",
        f"at {place.file}:{place.line} in {place.function}" if place else None,
        f"next: {report.next_step}",
    )
    return one_line("; ".join(part for part in parts if part))
