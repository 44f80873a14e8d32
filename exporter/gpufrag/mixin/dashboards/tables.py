"""Tables: the answers to several queries, joined by the labels that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue

from .panels import AnyPanel, Face, Query, as_table, dress, ref, steps


@dataclass(frozen=True)
class Column:
    """A query's value, or (without a query) a label. Without a title it is asked for and not shown."""

    title: str
    expr: str | None = None
    label: str | None = None
    unit: str | None = None
    decimals: int | None = None
    thresholds: Sequence[float] = ()
    link: str | None = None


def rows(face: Face, *columns: Column, sort: str | None = None) -> AnyPanel:
    """`sort` is the title of the column that orders the lines, largest first."""
    queries = [Query(column.expr) for column in columns if column.expr]
    panel = dress(table.Panel(), face, map(as_table, queries))
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel.with_transformation(_arrangement(columns))
    for column in columns:
        if properties := list(_properties(column)):
            panel.override_by_name(column.title, properties)
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    return panel


def _arrangement(columns: Sequence[Column]) -> DataTransformerConfig:
    """The columns in their order, under their titles; the time, and what has no title, is left out."""
    fields = _fields(columns)
    hidden = {"Time": True, **{field: True for column, field in zip(columns, fields) if not column.title}}
    titles = {field: column.title for column, field in zip(columns, fields) if column.title != field}
    order = {field: place for place, field in enumerate(fields)}
    options = {"excludeByName": hidden, "indexByName": order, "renameByName": titles}
    return DataTransformerConfig("organize", options=options)


def _fields(columns: Sequence[Column]) -> list[str]:
    """What Grafana calls each column: a label by its name, a lone query `Value`, several `Value #A` and on."""
    asked = [column for column in columns if column.expr]
    names = {id(column): f"Value #{ref(place)}" for place, column in enumerate(asked)} if len(asked) > 1 else {}
    return [column.label or names.get(id(column), "Value") for column in columns]


def _properties(column: Column) -> Iterable[DynamicConfigValue]:
    if column.unit:
        yield DynamicConfigValue("unit", column.unit)
    if column.decimals is not None:
        yield DynamicConfigValue("decimals", column.decimals)
    if column.thresholds:
        yield DynamicConfigValue("thresholds", steps(column.thresholds).build())
        yield DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    if column.link:
        yield DynamicConfigValue("links", [{"title": "Open", "url": column.link}])
