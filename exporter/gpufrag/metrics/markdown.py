"""The table as Markdown, for the pages that list all metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .row import HISTOGRAM, Metric
from .table import SECTIONS

BEGIN = "<!-- metrics: begin (generated from gpufrag.metrics.TABLE) -->"
END = "<!-- metrics: end -->"


def markdown_table(*, brief: bool = False) -> str:
    """A heading and a table a section. With `brief`, one table of all, with the first sentence of each help."""
    if brief:
        return _table(("metric", "labels", "meaning"), [_brief(row) for rows in SECTIONS.values() for row in rows])
    return "\n".join(
        f"## {title}\n\n{_table(('metric', 'type', 'labels', 'meaning'), [_full(row) for row in rows])}"
        for title, rows in SECTIONS.items()
    )


def with_table(page: str, table: str) -> str | None:
    """`page` with `table` between its two markers; None where it lacks them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{table}{end}{after}" if begin and end else None


def _full(row: Metric[Any]) -> tuple[str, ...]:
    kind = "gauge histogram" if row.kind == HISTOGRAM else row.kind
    return f"`{row.name}`", kind, ", ".join(row.labels), row.help


def _brief(row: Metric[Any]) -> tuple[str, ...]:
    return f"`{row.name}`", ", ".join(row.labels), row.help.split(". ")[0].removesuffix(".")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
