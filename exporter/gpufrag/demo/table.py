"""The demo's table: what a Prometheus would read from /metrics, as one line a rank."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ..errors import Unavailable
from ..units import format_bytes

TRIGGER = 4.0  # the ratio above which a job is called fragmented
OLD_SECONDS = 5.0
"""A snapshot that is so much older than its rank's latest is of another state: the demo's agents look each second."""


@dataclass(frozen=True)
class Row:
    """One rank, in bytes; None is what its sample does not tell (yet)."""

    rank: str
    steps: int | None
    reserved: float | None
    free_total: float | None
    largest_allocatable: float | None
    stranded: float | None

    @property
    def ratio(self) -> float | None:
        return self.free_total / self.largest_allocatable if self.free_total and self.largest_allocatable else None


def scrape(url: str, timeout: float = 5.0) -> str:
    """The text of /metrics. Raises Unavailable."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        raise Unavailable(
            f"{url} does not answer ({getattr(error, 'reason', error)}); is the sidecar running?"
        ) from None


def rows(text: str) -> list[Row]:
    """One row a rank, in the order of ranks; of recent snapshots at several moments, the one with the worst ratio."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (field := _COLUMNS.get(sample.name)) and (rank := sample.labels.get("rank")):
                sums = found.setdefault(rank, {}).setdefault(sample.labels.get("at", ""), {})
                sums[field] = sums.get(field, 0.0) + sample.value
    return [_worst(rank, found[rank]) for rank in sorted(found, key=lambda rank: (len(rank), rank))]


_COLUMNS = {
    "gpufrag_steps_total": "steps",
    "gpufrag_snapshot_timestamp_seconds": "taken",
    "gpufrag_allocator_reserved_bytes": "reserved",
    "gpufrag_allocator_free_total_bytes": "free_total",
    "gpufrag_allocator_largest_allocatable_bytes": "largest_allocatable",
    "gpufrag_allocator_stranded_bytes": "stranded",
}


def _worst(rank: str, by_moment: Mapping[str, Mapping[str, float]]) -> Row:
    always = by_moment.get("", {})
    moments = _recent([figures for at, figures in by_moment.items() if at]) or [{}]
    candidates = [_row(rank, {**always, **figures}) for figures in moments]
    return max(candidates, key=lambda row: row.ratio or 0.0)


def _recent(moments: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    latest = max((figures.get("taken", 0.0) for figures in moments), default=0.0)
    return [figures for figures in moments if latest - figures.get("taken", latest) <= OLD_SECONDS]


def _row(rank: str, figures: Mapping[str, float]) -> Row:
    steps = figures.get("steps")
    sizes = [figures.get(field) for field in ("reserved", "free_total", "largest_allocatable", "stranded")]
    return Row(rank, None if steps is None else int(steps), *sizes)


def lines(rows: Sequence[Row], colour: bool = False) -> list[str]:
    """Aligned text, the header first; a ratio above the trigger is marked (and red where colours are wanted)."""
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
