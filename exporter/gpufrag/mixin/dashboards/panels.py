"""The kinds of panels that the dashboards are made of, each a function from a Face and queries to a panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import (
    barchart,
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

from .memory import Part

DATASOURCE = DataSourceRef("prometheus", "$datasource")
GREEN, YELLOW, RED = "green", "#EAB839", "red"
WIDE = 12
"""From this width on, in columns of 24, a panel has room for a table of figures."""
AnyPanel: TypeAlias = Any
"""A panel's builder. Its types need Python 3.11, so they are not checked."""
P = TypeVar("P", barchart.Panel, heatmap.Panel, stat.Panel, statushistory.Panel, table.Panel, timeseries.Panel)


@dataclass(frozen=True)
class Face:
    """What a reader sees of any panel. `meaning` says in a user's words what it shows and what to conclude."""

    title: str
    meaning: str
    unit: str
    width: int = 12
    height: int = 8
    decimals: int | None = None
    runbook: str | None = None
    """Where the panel's alert is explained."""


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


Scale: TypeAlias = Sequence[tuple[float | None, str]]
"""From which value on (None: from the lowest) a cell has which colour."""


def lines(
    face: Face, *queries: Query, thresholds: Sequence[float] = (), bars: bool = False, link: str | None = None
) -> AnyPanel:
    """Curves over time; a dashed line at each of `thresholds`. `bars` suits counts of events."""
    panel = dress(timeseries.Panel(), face, map(_over_time, queries)).min(0).legend(_legend(face.width))
    panel.tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING))
    panel.fill_opacity(60 if bars else 5).line_width(1).show_points(words.VisibilityMode.NEVER)
    if bars:
        panel.draw_style(words.GraphDrawStyle.BARS).stacking(_stack())
    if thresholds:
        panel.thresholds(steps(thresholds)).thresholds_style(_DASHED).color_scheme(_palette())
    if link:
        panel.data_links([_link("Open the job", link)])
    return panel


def stacked(face: Face, parts: Iterable[Part]) -> AnyPanel:
    """Parts of a whole over time."""
    chosen = list(parts)
    panel = dress(timeseries.Panel(), face, [_over_time(Query(part.expr, part.name)) for part in chosen]).min(0)
    panel.stacking(_stack()).fill_opacity(70).line_width(0).show_points(words.VisibilityMode.NEVER)
    panel.tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI)).legend(_legend(face.width))
    for part in chosen:
        panel.override_by_name(part.name, [_fixed(part.colour)])
    return panel


def number(face: Face, query: Query, thresholds: Sequence[float] = (), *, name: bool = False) -> AnyPanel:
    """The latest value, coloured by `thresholds`; with `name`, the series that it belongs to as well."""
    panel = dress(stat.Panel(), face, [_now(query)]).graph_mode(words.BigValueGraphMode.NONE)
    panel.thresholds(steps(thresholds)).no_value("no data")
    mode = words.BigValueTextMode.VALUE_AND_NAME if name else words.BigValueTextMode.VALUE
    return panel.text_mode(mode).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def history(face: Face, query: Query, scale: Scale) -> AnyPanel:
    """One row a series, one cell a moment, coloured by value: who differs from the rest, and since when."""
    panel = dress(statushistory.Panel(), face, [_over_time(query)]).max_data_points(100).per_page(64)
    panel.thresholds(_scaled(scale)).color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    panel.show_value(words.VisibilityMode.NEVER).row_height(0.9).col_width(1)
    below = common.VizLegendOptions().show_legend(True).placement(words.LegendPlacement.BOTTOM)
    return panel.legend(below.display_mode(words.LegendDisplayMode.LIST))


def side_by_side(face: Face, label: str, parts: Iterable[Part]) -> AnyPanel:
    """One stacked bar a value of `label`, made of parts, as they are now."""
    chosen = list(parts)
    panel = dress(barchart.Panel(), face, [as_table(Query(part.expr)) for part in chosen]).min(0)
    panel.stacking(words.StackingMode.NORMAL).fill_opacity(85).line_width(0).x_field(label)
    panel.show_value(words.VisibilityMode.NEVER).x_tick_label_spacing(20)
    panel.legend(common.VizLegendOptions().show_legend(True).placement(words.LegendPlacement.BOTTOM))
    for transformation in _joined(label, [part.name for part in chosen]):
        panel.with_transformation(transformation)
    for part in chosen:
        panel.override_by_name(part.name, [_fixed(part.colour)])
    return panel


def sizes(face: Face, query: Query) -> AnyPanel:
    """A histogram over time: `query` gives the buckets (`le`) of one histogram."""
    target = _over_time(query).format(PromQueryFormat.HEATMAP)
    panel = dress(heatmap.Panel(), face, [target]).max_data_points(120)
    panel.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64).reverse(True))
    panel.y_axis(heatmap.YAxisConfig().unit("bytes").decimals(0)).filter_values(heatmap.FilterValueRange().le(1e-9))
    panel.rows_frame(heatmap.RowsHeatmapOptions().value("blocks").layout(words.HeatmapCellLayout.LE))
    return panel.cell_values(heatmap.CellValues().unit("short").decimals(0)).show_legend()


def dress(panel: P, face: Face, targets: Iterable[prometheus.Dataquery]) -> P:
    panel.title(face.title).description(face.meaning).unit(face.unit).datasource(DATASOURCE)
    panel.span(face.width).height(face.height)
    if face.decimals is not None:
        panel.decimals(face.decimals)
    if face.runbook:
        panel.links([_link("What to do", face.runbook)])
    for index, target in enumerate(targets):
        panel.with_target(target.ref_id(ref(index)).datasource(DATASOURCE))
    return panel


def _over_time(query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).range()


def _now(query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).instant()


def as_table(query: Query) -> prometheus.Dataquery:
    return _now(query).format(PromQueryFormat.TABLE)


def ref(index: int) -> str:
    """What a panel's queries are called, by their place."""
    return chr(ord("A") + index)


def steps(thresholds: Sequence[float]) -> dashboard.ThresholdsConfig:
    """Green below the first, red above the last, and yellow between two."""
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
    """A table beside the curves where there is room for it, else names below them."""
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
    """Instant queries as one table with a column a name, by `label` in the order of numbers."""

    def convert(kind: str) -> DataTransformerConfig:
        conversions = [{"targetField": label, "destinationType": kind}]
        return DataTransformerConfig("convertFieldType", options={"fields": {}, "conversions": conversions})

    order = DataTransformerConfig("sortBy", options={"fields": {}, "sort": [{"field": label}]})
    titles = {f"Value #{ref(index)}": name for index, name in enumerate(names)}
    shown = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": titles}
    merge, organize = DataTransformerConfig("merge", options={}), DataTransformerConfig("organize", options=shown)
    return [merge, convert("number"), order, convert("string"), organize]
