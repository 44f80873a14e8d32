"""What Grafana does with a dashboard's text: variables are replaced, rules of its linter are checked.

The rules are those of grafana/dashboard-linter, which is a Go program; each is a function from a dashboard to its
complaints. `exclusions` reads the same .lint file as the linter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml

Board = dict[str, Any]
Panel = dict[str, Any]

GLOBALS = {
    "__rate_interval": "4m",
    "__interval": "1m",
    "__range": "3h",
    "__url_time_range": "from=now-3h&to=now",
}
UNITS = frozenset({"none", "short", "percentunit", "bytes", "Bps", "binBps", "s", "ops", "cps", "dateTimeFromNow"})
"""Of Grafana's long list of units, those that a page about memory can want; any other is a mistake here."""

_VARIABLE = re.compile(r"\$([a-zA-Z_]\w*)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")


class Complaint(NamedTuple):
    rule: str
    where: str
    what: str


def panels(board: Board) -> list[Panel]:
    """All but the headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: Board) -> Iterator[tuple[Panel, str]]:
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel, target["expr"]


def variables(board: Board) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with its variables replaced. Raises KeyError for one that is not defined."""
    known = {**GLOBALS, **values}
    return _VARIABLE.sub(lambda match: known[next(filter(None, match.groups()))], text)


def parsed(board: Board, expr: str) -> promql.Expr:
    """As the linter does it: a variable stands for its own name."""
    return promql.parse(fill(expr, {name: name for name in variables(board)}))


def nodes(expr: promql.Expr, above: tuple[promql.Expr, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node, with the nodes above it, the nearest last."""
    yield expr, above
    below = [getattr(expr, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    for child in (*below, *(getattr(expr, "args", None) or ())):
        if isinstance(child, promql.Expr):
            yield from nodes(child, (*above, expr))


def selectors(board: Board, expr: str) -> Iterator[tuple[promql.VectorSelector, tuple[Any, ...]]]:
    for node, above in nodes(parsed(board, expr)):
        if isinstance(node, promql.VectorSelector):
            yield node, above


def template_datasource(board: Board) -> Iterator[str]:
    found = [variable for variable in board["templating"]["list"] if variable["type"] == "datasource"]
    if [(item["name"], item["label"], item["query"]) for item in found] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield f"datasource variables: {found}"


def _template(board: Board, name: str) -> Iterator[str]:
    wanted = {
        "type": "query",
        "label": name.capitalize(),
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
    }
    variable = variables(board).get(name, {})
    for key, value in wanted.items():
        if variable.get(key) != value:
            yield f"variable {name}: {key} is {variable.get(key)!r}, not {value!r}"


def template_job(board: Board) -> Iterator[str]:
    return _template(board, "job")


def template_instance(board: Board) -> Iterator[str]:
    return _template(board, "instance")


def template_label_promql(board: Board) -> Iterator[str]:
    for variable in variables(board).values():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"])
            try:
                parsed(board, asked[1] if asked else variable["query"])
            except ValueError as error:
                yield f"variable {variable['name']}: {error}"


def template_on_time_change_reload(board: Board) -> Iterator[str]:
    for variable in variables(board).values():
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield f"variable {variable['name']} is not read anew when the time range changes"


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
    for unit in (panel["fieldConfig"]["defaults"].get("unit"), *_values(properties, "unit")):
        if unit not in UNITS:
            yield f"unit {unit!r}"


def _values(properties: list[dict[str, Any]], name: str) -> list[Any]:
    return [item["value"] for item in properties if item["id"] == name]


def panel_no_targets(panel: Panel) -> Iterator[str]:
    if not panel.get("targets"):
        yield "no queries"


def target_promql(board: Board, expr: str) -> Iterator[str]:
    try:
        parsed(board, expr)
    except (ValueError, KeyError) as error:
        yield f"{error!r}: {expr}"


def target_rate_interval(board: Board, expr: str) -> Iterator[str]:
    marked = promql.parse(
        fill(expr, {name: name for name in variables(board)} | {"__rate_interval": "71m", "__interval": "73m"})
    )
    for node, _ in nodes(marked):
        if isinstance(node, promql.Call) and node.func.name in ("rate", "irate"):
            (window,) = node.args
            if window.range.total_seconds() != 71 * 60:
                yield f"a rate over something else than $__rate_interval: {expr}"


def _target_matcher(board: Board, expr: str, label: str) -> Iterator[str]:
    asked = promql.parse(fill(expr, {name: f"${name}" for name in variables(board)}))
    for node, _ in nodes(asked):
        if isinstance(node, promql.VectorSelector):
            found = [(matcher.name, matcher.op, matcher.value) for matcher in node.matchers.matchers]
            if (label, promql.MatchOp.Re, f"${label}") not in found:
                yield f'{node.name} without {label}=~"${label}"'


def target_job(board: Board, expr: str) -> Iterator[str]:
    return _target_matcher(board, expr, "job")


def target_instance(board: Board, expr: str) -> Iterator[str]:
    return _target_matcher(board, expr, "instance")


def target_counter_agg(board: Board, expr: str) -> Iterator[str]:
    for selector, above in selectors(board, expr):
        call = above[-2] if len(above) > 1 and isinstance(above[-1], promql.MatrixSelector) else None
        aggregated = isinstance(call, promql.Call) and call.func.name in ("rate", "irate", "increase")
        if (selector.name or "").endswith("_total") and not aggregated:
            yield f"{selector.name} outside of rate and increase"


BOARD_RULES: dict[str, Callable[[Board], Iterator[str]]] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": template_job,
    "template-instance-rule": template_instance,
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
    "target-job-rule": target_job,
    "target-instance-rule": target_instance,
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


def exclusions(path: Path) -> set[tuple[str, str, str]]:
    """(rule, dashboard, panel) of every exclusion; one that covers more than a panel is refused."""
    rules = yaml.safe_load(path.read_text())["exclusions"]
    assert all(rule["reason"].strip() for rule in rules.values())
    return {(name, entry["dashboard"], entry["panel"]) for name, rule in rules.items() for entry in rule["entries"]}
