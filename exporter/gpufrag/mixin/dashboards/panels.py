"""The kinds of panels: each is a function from a Face and queries to a panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from .queries import Part

DATASOURCE = DataSourceRef("prometheus", "$datasource")
GREEN, YELLOW, RED = "green", "#EAB839", "red"
WIDE = 12
"""Panels of at least this width (of 24 columns) show their legend as a table."""
AnyPanel: TypeAlias = Any
"""A panel builder; not checked, because the SDK's types need Python 3.11."""
P = TypeVar(
    "P", barchart.Panel, bargauge.Panel, heatmap.Panel, stat.Panel, statushistory.Panel, table.Panel, timeseries.Panel
)


@dataclass(frozen=True)
class Face:
    """What every panel has. `meaning` explains to a user what the panel shows and what to conclude from it."""

    title: str
    meaning: str
    unit: str
    width: int = 12
    height: int = 8
    decimals: int | None = None
    runbook: str | None = None
    """URL of the runbook of the panel's alert."""


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


Scale: TypeAlias = Sequence[tuple[float | None, str]]
"""Pairs of (lowest value, colour); None is the base."""


def lines(
    face: Face, *queries: Query, thresholds: Sequence[float] = (), bars: bool = False, link: str | None = None
) -> AnyPanel:
    """Curves over time, with a dashed line at each of `thresholds`. Use `bars` for counts of events."""
    panel = _dress(timeseries.Panel(), face, map(_range_query, queries)).min(0).legend(_legend(face.width))
    panel.tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING))
    panel.fill_opacity(60 if bars else 5).line_width(1).show_points(words.VisibilityMode.NEVER)
    if bars:
        panel.draw_style(words.GraphDrawStyle.BARS).stacking(_stack())
    if thresholds:
        panel.thresholds(_steps(thresholds)).thresholds_style(_DASHED).color_scheme(_palette())
    if link:
        panel.data_links([_link("Open the job", link)])
    return panel


def stacked(face: Face, parts: Iterable[Part]) -> AnyPanel:
    """Parts of a whole over time."""
    chosen = list(parts)
    panel = _dress(timeseries.Panel(), face, [_range_query(Query(part.expr, part.name)) for part in chosen]).min(0)
    panel.stacking(_stack()).fill_opacity(70).line_width(0).show_points(words.VisibilityMode.NEVER)
    panel.tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI)).legend(_legend(face.width))
    for part in chosen:
        panel.override_by_name(part.name, [_fixed(part.colour)])
    return panel


def number(face: Face, query: Query, thresholds: Sequence[float] = (), *, name: bool = False) -> AnyPanel:
    """The latest value, coloured by `thresholds`; `name` also shows the name of its series."""
    panel = _dress(stat.Panel(), face, [_instant_query(query)]).graph_mode(words.BigValueGraphMode.NONE)
    panel.thresholds(_steps(thresholds)).no_value("no data")
    mode = words.BigValueTextMode.VALUE_AND_NAME if name else words.BigValueTextMode.VALUE
    return panel.text_mode(mode).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def bars(face: Face, *queries: Query) -> AnyPanel:
    """One horizontal bar per series, with its latest value."""
    panel = _dress(bargauge.Panel(), face, map(_instant_query, queries)).min(0).no_value("no data")
    panel.orientation(words.VizOrientation.HORIZONTAL).color_scheme(_palette())
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def history(face: Face, query: Query, scale: Scale) -> AnyPanel:
    """One row per series, one cell per moment, coloured by value."""
    panel = _dress(statushistory.Panel(), face, [_range_query(query)]).max_data_points(100).per_page(64)
    panel.thresholds(_scaled(scale)).color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    panel.show_value(words.VisibilityMode.NEVER).row_height(0.9).col_width(1)
    below = common.VizLegendOptions().show_legend(True).placement(words.LegendPlacement.BOTTOM)
    return panel.legend(below.display_mode(words.LegendDisplayMode.LIST))


def side_by_side(face: Face, label: str, parts: Iterable[Part]) -> AnyPanel:
    """One stacked bar per value of `label`, with the latest values of the parts."""
    chosen = list(parts)
    panel = _dress(barchart.Panel(), face, [_table_query(Query(part.expr)) for part in chosen]).min(0)
    panel.stacking(words.StackingMode.NORMAL).fill_opacity(85).line_width(0).x_field(label)
    panel.show_value(words.VisibilityMode.NEVER).x_tick_label_spacing(20)
    panel.legend(common.VizLegendOptions().show_legend(True).placement(words.LegendPlacement.BOTTOM))
    for transformation in _joined(label, [part.name for part in chosen]):
        panel.with_transformation(transformation)
    for part in chosen:
        panel.override_by_name(part.name, [_fixed(part.colour)])
    return panel


def sizes(face: Face, query: Query) -> AnyPanel:
    """A histogram over time; `query` returns the buckets (`le`) of one histogram."""
    target = _range_query(query).format(PromQueryFormat.HEATMAP)
    panel = _dress(heatmap.Panel(), face, [target]).max_data_points(120)
    panel.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64).reverse(True))
    panel.y_axis(heatmap.YAxisConfig().unit("bytes").decimals(0)).filter_values(heatmap.FilterValueRange().le(1e-9))
    panel.rows_frame(heatmap.RowsHeatmapOptions().value("blocks").layout(words.HeatmapCellLayout.LE))
    return panel.cell_values(heatmap.CellValues().unit("short").decimals(0)).show_legend()


def _dress(panel: P, face: Face, targets: Iterable[prometheus.Dataquery]) -> P:
    panel.title(face.title).description(face.meaning).unit(face.unit).datasource(DATASOURCE)
    panel.span(face.width).height(face.height)
    if face.decimals is not None:
        panel.decimals(face.decimals)
    if face.runbook:
        panel.links([_link("What to do", face.runbook)])
    for index, target in enumerate(targets):
        panel.with_target(target.ref_id(_ref(index)).datasource(DATASOURCE))
    return panel


def _range_query(query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).range()


def _instant_query(query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).instant()


def _table_query(query: Query) -> prometheus.Dataquery:
    return _instant_query(query).format(PromQueryFormat.TABLE)


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _steps(thresholds: Sequence[float]) -> dashboard.ThresholdsConfig:
    """Green below the first threshold, red above the last, yellow in between."""
    colours = [RED] if len(thresholds) < 2 else [YELLOW, RED]
    return _scaled([(None, GREEN), *zip(thresholds, colours)])


def _scaled(scale: Scale) -> dashboard.ThresholdsConfig:
    chosen = [Threshold(value, colour) for value, colour in scale]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(chosen)


_DASHED = common.GraphThresholdsStyleConfig().mode(words.GraphThresholdsStyleMode.DASHED)


def _palette() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC)


def _stack() -> common.StackingConfig:
    return common.StackingConfig().mode(words.StackingMode.NORMAL).group("A")


def _legend(width: int) -> common.VizLegendOptions:
    """A table next to the curves if there is room, else names below."""
    legend = common.VizLegendOptions().show_legend(True)
    if width < WIDE:
        return legend.display_mode(words.LegendDisplayMode.LIST).placement(words.LegendPlacement.BOTTOM)
    legend.display_mode(words.LegendDisplayMode.TABLE).placement(words.LegendPlacement.RIGHT)
    return legend.calcs(["lastNotNull", "max"]).sort_by("Max").sort_desc(True)


def _fixed(colour: str) -> DynamicConfigValue:
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(DashboardLinkType.LINK).url(url)


def _joined(label: str, names: Sequence[str]) -> list[DataTransformerConfig]:
    """Join instant queries into one table with a column per name, sorted by `label` as a number."""

    def convert(kind: str) -> DataTransformerConfig:
        conversions = [{"targetField": label, "destinationType": kind}]
        return DataTransformerConfig("convertFieldType", options={"fields": {}, "conversions": conversions})

    order = DataTransformerConfig("sortBy", options={"fields": {}, "sort": [{"field": label}]})
    titles = {f"Value #{_ref(index)}": name for index, name in enumerate(names)}
    shown = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": titles}
    merge, organize = DataTransformerConfig("merge", options={}), DataTransformerConfig("organize", options=shown)
    return [merge, convert("number"), order, convert("string"), organize]


@dataclass(frozen=True)
class Column:
    """The value of a query, or a label. A column without a title is queried but hidden."""

    title: str
    expr: str | None = None
    label: str | None = None
    unit: str | None = None
    decimals: int | None = None
    thresholds: Sequence[float] = ()
    link: str | None = None


def rows(face: Face, *columns: Column, sort: str | None = None) -> AnyPanel:
    """A table of several queries, joined by their common labels. `sort`: title of the column to sort by, descending."""
    queries = [Query(column.expr) for column in columns if column.expr]
    panel = _dress(table.Panel(), face, map(_table_query, queries))
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel.with_transformation(_arrangement(columns))
    for column in columns:
        if properties := list(_properties(column)):
            panel.override_by_name(column.title, properties)
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    return panel


def _arrangement(columns: Sequence[Column]) -> DataTransformerConfig:
    """Order and rename the columns; hide the time and columns without a title."""
    fields = _fields(columns)
    hidden = {"Time": True, **{field: True for column, field in zip(columns, fields) if not column.title}}
    titles = {field: column.title for column, field in zip(columns, fields) if column.title != field}
    order = {field: place for place, field in enumerate(fields)}
    options = {"excludeByName": hidden, "indexByName": order, "renameByName": titles}
    return DataTransformerConfig("organize", options=options)


def _fields(columns: Sequence[Column]) -> list[str]:
    """Return Grafana's field names: a label has its own; one query is `Value`, several are `Value #A`, `Value #B`."""
    asked = [column for column in columns if column.expr]
    names = {id(column): f"Value #{_ref(place)}" for place, column in enumerate(asked)} if len(asked) > 1 else {}
    return [column.label or names.get(id(column), "Value") for column in columns]


def _properties(column: Column) -> Iterable[DynamicConfigValue]:
    if column.unit:
        yield DynamicConfigValue("unit", column.unit)
    if column.decimals is not None:
        yield DynamicConfigValue("decimals", column.decimals)
    if column.thresholds:
        yield DynamicConfigValue("thresholds", _steps(column.thresholds).build())
        yield DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    if column.link:
        yield DynamicConfigValue("links", [{"title": "Open", "url": column.link}])
