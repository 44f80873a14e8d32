"""The rules of grafana/dashboard-linter (a Go program) that apply here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser as promql

from render_dashboards.grafana import Board, Panel, fill, panels, targets, variables

UNITS = frozenset({"none", "short", "percentunit", "bytes", "s"})
"""The units that dashboards about memory need; any other is probably a mistake."""
DATASOURCE = {"type": "prometheus", "uid": "$datasource"}
FILTER = {"type": "query", "multi": True, "includeAll": True, "allValue": ".+", "datasource": DATASOURCE}
COUNTS = ("rate", "irate", "increase")


class Complaint(NamedTuple):
    rule: str
    where: str


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


def names_in(board: Board, expr: str) -> set[str]:
    return {node.name for node, _ in nodes(parsed(board, expr)) if isinstance(node, promql.VectorSelector)}


def board_rules(board: Board) -> Iterator[str]:
    """Yield the broken rules."""
    sources = [variable for variable in board["templating"]["list"] if variable["type"] == "datasource"]
    if [(v["name"], v["label"], v["query"]) for v in sources] != [("datasource", "Data source", "prometheus")]:
        yield "template-datasource-rule"
    for name in ("job", "instance"):
        if not (FILTER | {"label": name.capitalize()}).items() <= variables(board).get(name, {}).items():
            yield f"template-{name}-rule"
    for variable in variables(board).values():
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"])
            if not parses(board, query[1] if query else variable["query"]):
                yield "template-label-promql-rule"
            if variable["refresh"] != 2:
                yield "template-on-time-change-reload-rule"
    if board["editable"] is not False:
        yield "uneditable-dashboard"


def panel_rules(panel: Panel) -> Iterator[str]:
    if any(place["datasource"]["uid"] != "$datasource" for place in (panel, *panel["targets"])):
        yield "panel-datasource-rule"
    if not (panel.get("title") and panel.get("description")):
        yield "panel-title-description-rule"
    properties = [item for override in panel["fieldConfig"]["overrides"] for item in override["properties"]]
    units = [item["value"] for item in properties if item["id"] == "unit"]
    if not {panel["fieldConfig"]["defaults"].get("unit"), *units} <= UNITS:
        yield "panel-units-rule"
    if not panel.get("targets"):
        yield "panel-no-targets-rule"


def parses(board: Board, expr: str) -> bool:
    try:
        parsed(board, expr)
    except (ValueError, KeyError):
        return False
    return True


def target_rules(board: Board, expr: str) -> Iterator[str]:
    if not parses(board, expr):
        yield "target-promql-rule"
        return
    values = {"__rate_interval": "71m", "__interval": "73m", "job": "$job", "instance": "$instance"}
    for node, above in nodes(parsed(board, expr, **values)):
        if isinstance(node, promql.Call) and node.func.name in ("rate", "irate"):
            if node.args[0].range.total_seconds() != 71 * 60:
                yield "target-rate-interval-rule"
        elif isinstance(node, promql.VectorSelector):
            found = [(matcher.name, matcher.op, matcher.value) for matcher in node.matchers.matchers]
            for label in ("job", "instance"):
                if (label, promql.MatchOp.Re, f"${label}") not in found:
                    yield f"target-{label}-rule"
            call = above[-2] if len(above) > 1 and isinstance(above[-1], promql.MatrixSelector) else None
            counts = isinstance(call, promql.Call) and call.func.name in COUNTS
            if (node.name or "").endswith("_total") and not counts:
                yield "target-counter-agg-rule"


def lint(board: Board) -> Iterator[Complaint]:
    yield from (Complaint(rule, "") for rule in board_rules(board))
    for panel in panels(board):
        yield from (Complaint(rule, panel["title"]) for rule in panel_rules(panel))
    for panel, expr in targets(board):
        yield from (Complaint(rule, panel["title"]) for rule in target_rules(board, expr))
