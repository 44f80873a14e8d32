"""The rules of grafana/dashboard-linter (a Go program), each as a function that yields complaints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import promql_parser as promql

from render_dashboards.grafana import Board, Panel, fill, panels, targets, variables

UNITS = frozenset({"none", "short", "percentunit", "bytes", "s"})
"""The units that dashboards about memory need; any other is probably a mistake."""
DATASOURCE = {"type": "prometheus", "uid": "$datasource"}


class Complaint(NamedTuple):
    rule: str
    where: str
    what: str


def parsed(board: Board, expr: str, **values: str) -> promql.Expr:
    """Parse a query like the linter: a variable stands for its own name."""
    return promql.parse(fill(expr, {name: name for name in variables(board)} | values))


def nodes(expr: promql.Expr, above: tuple[promql.Expr, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every node with the nodes above it, the nearest last."""
    yield expr, above
    below = [getattr(expr, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    for child in (*below, *(getattr(expr, "args", None) or ())):
        if isinstance(child, promql.Expr):
            yield from nodes(child, (*above, expr))


def selectors(board: Board, expr: str) -> Iterator[tuple[promql.VectorSelector, tuple[Any, ...]]]:
    return ((node, above) for node, above in nodes(parsed(board, expr)) if isinstance(node, promql.VectorSelector))


def names_in(board: Board, expr: str) -> set[str]:
    return {selector.name for selector, _ in selectors(board, expr)}


def template_datasource(board: Board) -> Iterator[str]:
    found = [variable for variable in board["templating"]["list"] if variable["type"] == "datasource"]
    if [(v["name"], v["label"], v["query"]) for v in found] != [("datasource", "Data source", "prometheus")]:
        yield f"datasource variables: {found}"


def template_of(name: str) -> Callable[[Board], Iterator[str]]:
    wanted = {
        "type": "query",
        "label": name.capitalize(),
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "datasource": DATASOURCE,
    }

    def check(board: Board) -> Iterator[str]:
        variable = variables(board).get(name, {})
        for key, value in wanted.items():
            if variable.get(key) != value:
                yield f"variable {name}: {key} is {variable.get(key)!r}, not {value!r}"

    return check


def template_label_promql(board: Board) -> Iterator[str]:
    for variable in variables(board).values():
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"])
            yield from target_promql(board, query[1] if query else variable["query"])


def template_on_time_change_reload(board: Board) -> Iterator[str]:
    for variable in variables(board).values():
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield f"variable {variable['name']} is not refreshed when the time range changes"


def uneditable(board: Board) -> Iterator[str]:
    if board["editable"] is not False:
        yield "the dashboard can be edited"


def panel_datasource(panel: Panel) -> Iterator[str]:
    for place in (panel, *panel["targets"]):
        if place["datasource"]["uid"] != "$datasource":
            yield f"data source {place['datasource']}"


def panel_title_description(panel: Panel) -> Iterator[str]:
    for key in ("title", "description"):
        if not panel.get(key):
            yield f"no {key}"


def panel_units(panel: Panel) -> Iterator[str]:
    properties = [item for override in panel["fieldConfig"]["overrides"] for item in override["properties"]]
    overrides = [item["value"] for item in properties if item["id"] == "unit"]
    for unit in (panel["fieldConfig"]["defaults"].get("unit"), *overrides):
        if unit not in UNITS:
            yield f"unit {unit!r}"


def panel_no_targets(panel: Panel) -> Iterator[str]:
    if not panel.get("targets"):
        yield "no queries"


def target_promql(board: Board, expr: str) -> Iterator[str]:
    try:
        parsed(board, expr)
    except (ValueError, KeyError) as error:
        yield f"{error!r}: {expr}"


def target_rate_interval(board: Board, expr: str) -> Iterator[str]:
    for node, _ in nodes(parsed(board, expr, __rate_interval="71m", __interval="73m")):
        if isinstance(node, promql.Call) and node.func.name in ("rate", "irate"):
            (window,) = node.args
            if window.range.total_seconds() != 71 * 60:
                yield f"a rate over something else than $__rate_interval: {expr}"


def target_matches(label: str) -> Callable[[Board, str], Iterator[str]]:
    def check(board: Board, expr: str) -> Iterator[str]:
        for node, _ in nodes(parsed(board, expr, **{label: f"${label}"})):
            if isinstance(node, promql.VectorSelector):
                found = [(matcher.name, matcher.op, matcher.value) for matcher in node.matchers.matchers]
                if (label, promql.MatchOp.Re, f"${label}") not in found:
                    yield f'{node.name} without {label}=~"${label}"'

    return check


def target_counter_agg(board: Board, expr: str) -> Iterator[str]:
    for selector, above in selectors(board, expr):
        call = above[-2] if len(above) > 1 and isinstance(above[-1], promql.MatrixSelector) else None
        aggregated = isinstance(call, promql.Call) and call.func.name in ("rate", "irate", "increase")
        if (selector.name or "").endswith("_total") and not aggregated:
            yield f"{selector.name} outside of rate and increase"


BOARD_RULES: dict[str, Callable[[Board], Iterator[str]]] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": template_of("job"),
    "template-instance-rule": template_of("instance"),
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "uneditable-dashboard": uneditable,
}
PANEL_RULES: dict[str, Callable[[Panel], Iterator[str]]] = {
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
}
TARGET_RULES: dict[str, Callable[[Board, str], Iterator[str]]] = {
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": target_matches("job"),
    "target-instance-rule": target_matches("instance"),
    "target-counter-agg-rule": target_counter_agg,
}


def lint(board: Board) -> Iterator[Complaint]:
    for name, board_rule in BOARD_RULES.items():
        yield from (Complaint(name, "", what) for what in board_rule(board))
    for panel in panels(board):
        for name, panel_rule in PANEL_RULES.items():
            yield from (Complaint(name, panel["title"], what) for what in panel_rule(panel))
    for panel, expr in targets(board):
        unreadable = list(target_promql(board, expr))
        yield from (Complaint("target-promql-rule", panel["title"], what) for what in unreadable)
        for name, target_rule in ({} if unreadable else TARGET_RULES).items():
            yield from (Complaint(name, panel["title"], what) for what in target_rule(board, expr))
