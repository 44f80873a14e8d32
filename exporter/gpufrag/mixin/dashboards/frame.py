"""What is around the panels of a dashboard: its name, variables, links and annotations, and the JSON of it all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableRefresh,
    VariableSort,
)

from ..config import Config, duration
from .panels import DATASOURCE, AnyPanel
from .selection import Selection, Variable

FLEET, JOB, DEVICE = "gpufrag-fleet", "gpufrag-job", "gpufrag-device"
"""The uids, and the names of the files."""
_TITLES = {FLEET: "GPU memory / Fleet", JOB: "GPU memory / Job", DEVICE: "GPU memory / Device"}
_GRAFANA = "11.0.0"
_PLUGINS = {"barchart": "Bar chart", "heatmap": "Heatmap", "stat": "Stat", "status-history": "Status history",
            "table": "Table", "timeseries": "Time series"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Panels under a heading, from left to right; their widths fill lines of 24."""

    title: str
    panels: Sequence[AnyPanel]


@dataclass(frozen=True)
class Annotation:
    """Marks on every panel, wherever `expr` has a value."""

    name: str
    expr: str
    colour: str
    title: str
    """With the labels of the series in double braces."""


def document(
    uid: str, about: str, selection: Selection, rows: Sequence[Row], extra: Sequence[Variable] = ()
) -> dict[str, Any]:
    """The dashboard as Grafana imports it. `extra` are variables that are matched by hand."""
    board = dashboard.Dashboard(_TITLES[uid]).uid(uid).description(about).tags(["gpufrag", "gpu"]).readonly()
    board.time("now-3h", "now").refresh("1m").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    board.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in _variables(selection, extra):
        board.with_variable(variable)
    for link in _links(uid, selection.config):
        board.link(link)
    for row in rows:
        board.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            board.with_panel(panel)
    return _finished(json.loads(JSONEncoder().encode(board.build())), _annotations(selection))


def open_job(config: Config, value: str) -> str:
    """The link to the Job dashboard for what was clicked; `value` is Grafana's name of a label's value, as in
    `${__field.labels.%s}`."""
    labels = "".join(f"&var-{label}={value.replace('%s', label)}" for label in config.job_labels)
    return f"/d/{JOB}?${{__url_time_range}}&var-datasource=${{datasource}}{labels}"


def begun(selection: Selection, window: str) -> str:
    """The processes that were not there `window` ago, nor for some time before: a missed scrape begins nothing."""
    info = selection.series("gpufrag_process_info")
    memory = duration(selection.config.timing.memory)
    return f"{info} unless on (instance, rank, device, pid) last_over_time({info}[{memory}] offset {window})"


def _variables(selection: Selection, extra: Sequence[Variable]) -> list[dashboard.QueryVariable]:
    """Each offers what the ones before it leave."""
    built = []
    for place, variable in enumerate(selection.variables):
        narrowed = Selection(selection.config, selection.variables[:place]).series("gpufrag_process_info")
        built.append(_variable(variable, narrowed))
    snapshots = selection.series("gpufrag_snapshot_timestamp_seconds")
    return [*built, *(_variable(variable, snapshots) for variable in extra)]


def _variable(variable: Variable, source: str) -> dashboard.QueryVariable:
    built = dashboard.QueryVariable(variable.label).label(variable.title).datasource(DATASOURCE)
    built.query(f"label_values({source}, {variable.label})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    built.sort(VariableSort.NATURAL_ASC)
    return built if variable.single else built.multi(True).include_all(True).all_value(variable.all_value)


def _links(uid: str, config: Config) -> list[dashboard.DashboardLink]:
    others = [
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(f"/d/{other}")
        .include_vars(True)
        .keep_time(True)
        for other, title in _TITLES.items()
        if other != uid
    ]
    return [*others, dashboard.DashboardLink("Runbooks").type(DashboardLinkType.LINK).url(config.runbook_url)]


def _annotations(selection: Selection) -> list[Annotation]:
    config = selection.config
    window = duration(config.timing.window)
    ooms = selection.series("gpufrag_allocator_ooms_total")
    return [
        Annotation(
            "Out of memory",
            f"sum by ({config.by_job}, rank) (increase({ooms}[{window}])) > 0",
            "red",
            f"out of memory: rank {{{{rank}}}} of {selection.job}",
        ),
        Annotation(
            "Ranks started",
            f"count by ({config.by_job}) ({begun(selection, window)})",
            "blue",
            f"ranks (re)started: {selection.job}",
        ),
    ]


def _finished(board: dict[str, Any], annotations: Sequence[Annotation]) -> dict[str, Any]:
    """With what the SDK has no words for: the ids of panels, annotations with a title, what must be installed."""
    kinds = {panel["type"] for panel in board["panels"]} - {"row"}
    needed = [{"type": "panel", "id": kind, "name": _PLUGINS[kind], "version": ""} for kind in sorted(kinds)]
    source = {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}
    grafana = {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _GRAFANA}
    for number, panel in zip(count(1), board["panels"]):
        panel["id"] = number
    return {
        **board,
        "__requires": [grafana, source, *needed],
        "annotations": {"list": [_annotation(annotation) for annotation in annotations]},
    }


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "enable": True,
        "expr": annotation.expr,
        "hide": False,
        "iconColor": annotation.colour,
        "name": annotation.name,
        "titleFormat": annotation.title,
    }
