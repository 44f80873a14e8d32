"""A whole dashboard as JSON: panels in rows, variables, links and annotations."""

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

from ...metrics import names
from ...metrics.names import Label
from ..config import Config, duration
from .panels import DATASOURCE, AnyPanel
from .queries import Selection, Variable

FLEET, JOB, DEVICE = "gpufrag-fleet", "gpufrag-job", "gpufrag-device"
"""The uids, which are also the file names."""
_TITLES = {FLEET: "GPU memory / Fleet", JOB: "GPU memory / Job", DEVICE: "GPU memory / Device"}
_GRAFANA = "11.0.0"
_PLUGINS = {"barchart": "Bar chart", "bargauge": "Bar gauge", "heatmap": "Heatmap", "stat": "Stat",
            "status-history": "Status history", "table": "Table", "timeseries": "Time series"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Panels under a heading, left to right; their widths add up to multiples of 24."""

    title: str
    panels: Sequence[AnyPanel]


@dataclass(frozen=True)
class Annotation:
    """Marks on every panel, where `expr` has a value."""

    name: str
    expr: str
    colour: str
    title: str
    """May contain labels of the series in double braces."""


def document(
    uid: str, about: str, selection: Selection, rows: Sequence[Row], extra: Sequence[Variable] = ()
) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it. `extra` are variables that Selection does not apply."""
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
    """Return the link to the Job dashboard; `value` is Grafana's expression for the value of a label %s."""
    labels = "".join(f"&var-{label}={value.replace('%s', label)}" for label in config.job_labels)
    return f"/d/{JOB}?${{__url_time_range}}&var-datasource=${{datasource}}{labels}"


def started(selection: Selection, window: str) -> str:
    """Return PromQL for processes that started within `window`. A missed scrape does not count as a start."""
    info = selection.series(names.PROCESS_INFO)
    memory = duration(selection.config.timing.memory)
    on = ", ".join((Label.INSTANCE, Label.RANK, Label.DEVICE, Label.PID))
    return f"{info} unless on ({on}) last_over_time({info}[{memory}] offset {window})"


def _variables(selection: Selection, extra: Sequence[Variable]) -> list[dashboard.QueryVariable]:
    """Each variable offers the values that the variables before it leave."""
    built = []
    for place, variable in enumerate(selection.variables):
        narrowed = Selection(selection.config, selection.variables[:place]).series(names.PROCESS_INFO)
        built.append(_variable(variable, narrowed))
    snapshots = selection.series(names.SNAPSHOT_TIMESTAMP)
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
    if config.runbook_url and "{name}" not in config.runbook_url:
        others.append(dashboard.DashboardLink("Runbooks").type(DashboardLinkType.LINK).url(config.runbook_url))
    return others


def _annotations(selection: Selection) -> list[Annotation]:
    config = selection.config
    window = duration(config.timing.window)
    ooms = selection.series(names.OOMS)
    return [
        Annotation(
            "Out of memory",
            f"sum by ({config.by_job}, {Label.RANK}) (increase({ooms}[{window}])) > 0",
            "red",
            f"out of memory: {selection.rank_of_job}",
        ),
        Annotation(
            "Ranks started",
            f"count by ({config.by_job}) ({started(selection, window)})",
            "blue",
            f"ranks started: {selection.job}",
        ),
    ]


def _finished(board: dict[str, Any], annotations: Sequence[Annotation]) -> dict[str, Any]:
    """Add what the SDK does not support: panel ids, annotations with a title, required plugins."""
    kinds = {panel["type"] for panel in board["panels"]} - {"row"}
    needed = [{"type": "panel", "id": kind, "name": _PLUGINS[kind], "version": ""} for kind in sorted(kinds)]
    source = {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}
    grafana = {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _GRAFANA}
    for number, panel in zip(count(1), board["panels"]):
        panel["id"] = number
    return {
        **board,
        "__requires": [grafana, source, *needed],
        "annotations": {"list": [_annotation_json(annotation) for annotation in annotations]},
    }


def _annotation_json(annotation: Annotation) -> dict[str, Any]:
    return {
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "enable": True,
        "expr": annotation.expr,
        "hide": False,
        "iconColor": annotation.colour,
        "name": annotation.name,
        "titleFormat": annotation.title,
    }
