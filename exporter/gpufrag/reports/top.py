"""`gpufrag top`: the ranks as a table, sorted and filtered."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ..errors import UsageError
from ..metrics.scraped import RankRow
from ..units import format_bytes, parse_bytes
from .terminal import Emphasis

UNKNOWN = "–"
TRIGGER = 4.0
"""A higher ratio is marked as fragmented."""


def _bytes(size: float | None) -> str:
    return UNKNOWN if size is None else format_bytes(size)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


class Column(NamedTuple):
    """`value` is what rows are sorted and filtered by, `text` what is shown."""

    name: str
    value: Callable[[RankRow], Any]
    text: Callable[[Any], str]
    is_size: bool = False


def _size(name: str, field: str) -> Column:
    return Column(name, operator.attrgetter(field), _bytes, is_size=True)


COLUMNS = (
    Column("rank", operator.attrgetter("rank"), str),
    Column("device", operator.attrgetter("device"), str),
    Column("state", lambda row: "alive" if row.up else "dead", str),
    Column("steps", operator.attrgetter("steps"), _number),
    Column("ratio", operator.attrgetter("ratio"), _number),
    Column("peak-ratio", operator.attrgetter("peak_ratio"), _number),
    _size("margin", "margin"),
    _size("smallest-limit", "smallest_limit"),
    _size("largest", "largest_allocatable"),
    _size("free", "free_total"),
    _size("stranded", "stranded"),
    _size("reserved", "reserved"),
    _size("limit", "limit"),
    Column("ooms", operator.attrgetter("ooms"), _number),
    _size("leak", "leak_per_step"),
)
BY_NAME = {column.name: column for column in COLUMNS}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, ">": operator.gt, "<": operator.lt, "=": operator.eq,
}  # fmt: skip
_CONDITION = re.compile(r"\s*([a-z-]+)\s*(>=|<=|!=|>|<|=)\s*(.+?)\s*")


class Condition(NamedTuple):
    """One condition of a filter; a row without the value does not meet it."""

    column: Column
    compare: Callable[[Any, Any], bool]
    value: Any

    def met_by(self, row: RankRow) -> bool:
        found = self.column.value(row)
        return found is not None and self.compare(found, self.value)


def parse_filter(text: str) -> list[Condition]:
    """Parse conditions such as `ratio>4, margin<1GiB, rank=3`. Raises UsageError."""
    return [_condition(part) for part in text.split(",") if part.strip()]


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    column = BY_NAME.get(found[1]) if found else None
    if found is None or column is None:
        names = ", ".join(BY_NAME)
        raise UsageError(f"{text.strip()!r:.60} is not a condition such as ratio>4 or margin<1GiB; columns: {names}")
    value: Any = found[3]
    if column.is_size:
        value = parse_bytes(value)
    elif column.text is _number:
        try:
            value = float(value)
        except ValueError:
            raise UsageError(f"{column.name} must be a number, such as {column.name}>4 (got {value!r:.40})") from None
    elif found[2] not in ("=", "!="):
        raise UsageError(f"{column.name} is text: compare it with = or != (got {text.strip()!r:.60})")
    return Condition(column, _OPERATORS[found[2]], value)


def column_named(name: str) -> Column:
    """Raises UsageError."""
    if name not in BY_NAME:
        raise UsageError(f"no column {name!r:.40}; the columns are {', '.join(BY_NAME)}")
    return BY_NAME[name]


def chosen(rows: Sequence[RankRow], conditions: Sequence[Condition], by: Column, reverse: bool) -> list[RankRow]:
    """Return the rows that meet all conditions, sorted; those without a value come last."""
    met = [row for row in rows if all(condition.met_by(row) for condition in conditions)]
    known = [row for row in met if by.value(row) is not None]
    known.sort(key=lambda row: _sort_key(by.value(row)), reverse=reverse)
    return known + [row for row in met if by.value(row) is None]


def _sort_key(value: Any) -> tuple[int, Any]:
    """Ranks that are numbers sort as numbers."""
    if isinstance(value, str):
        return (0, (int(value), "")) if value.isdecimal() else (0, (1 << 62, value))
    return 0, value


def cells(row: RankRow) -> list[str]:
    return [column.text(column.value(row)) for column in COLUMNS]


def is_bad(row: RankRow) -> bool:
    """Whether it needs attention: fragmented, or too little memory for its step."""
    return max(row.ratio or 0.0, row.peak_ratio or 0.0) > TRIGGER or (row.margin is not None and row.margin < 0)


def as_lines(rows: Sequence[RankRow], bold: Emphasis = str) -> list[str]:
    """Return aligned text with a header; rows that need attention end with `!`."""
    table = [[column.name for column in COLUMNS], *map(cells, rows)]
    widths = [max(len(line[index]) for line in table) for index in range(len(COLUMNS))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in table]
    body = [f"{line} !" if is_bad(row) else line for line, row in zip(text[1:], rows)]
    return [bold(text[0]), *body]


def as_record(row: RankRow) -> dict[str, Any]:
    return {**asdict(row), "ratio": row.ratio}
