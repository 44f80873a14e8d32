"""The demo's table: what Prometheus would read from /metrics, one line per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ..errors import Unavailable
from ..metrics import names
from ..metrics.names import Label
from ..units import format_bytes
from ..web.client import Client

TRIGGER = 4.0
"""A rank with a higher ratio is marked as fragmented."""
OLD_SECONDS = 5.0
"""A snapshot this much older than the rank's latest is ignored: the demo's agents take one per second."""


@dataclass(frozen=True)
class Row:
    """One rank, in bytes; None if its sample does not have the figure (yet)."""

    rank: str
    steps: int | None
    reserved: float | None
    free_total: float | None
    largest_allocatable: float | None
    stranded: float | None

    @property
    def ratio(self) -> float | None:
        return self.free_total / self.largest_allocatable if self.free_total and self.largest_allocatable else None


_COLUMNS = {
    names.STEPS: "steps",
    names.SNAPSHOT_TIMESTAMP: "taken",
    names.RESERVED: "reserved",
    names.FREE_TOTAL: "free_total",
    names.LARGEST_ALLOCATABLE: "largest_allocatable",
    names.STRANDED: "stranded",
}


def scrape(url: str) -> str:
    """Return the text of /metrics. Raises Unavailable."""
    answer = Client(url).get("/metrics")
    if answer.status != 200:
        raise Unavailable(f"{answer.url} answered with status {answer.status}")
    return answer.text


def shows(text: str, times: Mapping[str, float]) -> bool:
    """Return whether each rank has a snapshot that was taken at its time in `times` or later."""
    taken = [
        (sample.labels.get(Label.RANK), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == names.SNAPSHOT_TIMESTAMP
    ]
    return all(any(rank == wanted and at >= time for rank, at in taken) for wanted, time in times.items())


def rows(text: str) -> list[Row]:
    """Return one row per rank, sorted; of recent snapshots at several moments, the one with the worst ratio."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        if (field := _COLUMNS.get(sample.name)) and (rank := sample.labels.get(Label.RANK)):
            sums = found.setdefault(rank, {}).setdefault(sample.labels.get(Label.AT, ""), {})
            sums[field] = sums.get(field, 0.0) + sample.value
    return [_worst(rank, found[rank]) for rank in sorted(found, key=lambda rank: (len(rank), rank))]


def _worst(rank: str, by_moment: Mapping[str, Mapping[str, float]]) -> Row:
    moments = [figures for at, figures in by_moment.items() if at]
    latest = max((figures.get("taken", 0.0) for figures in moments), default=0.0)
    recent = [figures for figures in moments if latest - figures.get("taken", latest) <= OLD_SECONDS] or [{}]
    return max((_row(rank, {**by_moment.get("", {}), **figures}) for figures in recent), key=lambda row: row.ratio or 0)


def _row(rank: str, figures: Mapping[str, float]) -> Row:
    steps = figures.get("steps")
    sizes = [figures.get(field) for field in ("reserved", "free_total", "largest_allocatable", "stranded")]
    return Row(rank, None if steps is None else int(steps), *sizes)


def lines(rows: Sequence[Row], colour: bool = False) -> list[str]:
    """Return aligned text with a header; fragmented ranks are marked (red if `colour`)."""
    head = ("rank", "steps", "reserved", "free_total", "largest_allocatable", "stranded", "ratio")
    table = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in table]
    return [text[0], *(_marked(line, row, colour) for line, row in zip(text[1:], rows))]


def _cells(row: Row) -> tuple[str, ...]:
    sizes = (row.reserved, row.free_total, row.largest_allocatable, row.stranded)
    shown = ["-" if size is None else format_bytes(size) for size in sizes]
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return (row.rank, "-" if row.steps is None else str(row.steps), *shown, ratio)


def _marked(line: str, row: Row, colour: bool) -> str:
    if row.ratio is None or row.ratio <= TRIGGER:
        return line
    return f"\x1b[31m{line}  fragmented\x1b[0m" if colour else f"{line}  fragmented"


def summary(rows: Sequence[Row]) -> str:
    """Return one sentence about the worst rank."""
    worst = max(rows, key=lambda row: row.ratio or 0.0, default=None)
    if worst is None or worst.ratio is None or worst.ratio <= TRIGGER:
        return "No rank is fragmented."
    free, largest = format_bytes(worst.free_total or 0), format_bytes(worst.largest_allocatable or 0)
    return f"Rank {worst.rank} is fragmented: {free} is free, but a request above {largest} fails."
