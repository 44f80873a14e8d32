"""The dashboards pass Grafana's dashboard-linter, except for the exclusions in grafana/.lint."""

from __future__ import annotations

import pytest
import yaml

from mixin.dashboards.linter import lint
from render_dashboards.grafana import panels, variables
from render_dashboards.views import GRAFANA


def test_linter_has_exactly_the_excluded_complaints(boards):
    found = {(item.rule, board["title"], item.where) for board in boards.values() for item in lint(board)}
    rules = yaml.safe_load((GRAFANA / ".lint").read_text())["exclusions"]
    assert all(rule["reason"].strip() for rule in rules.values())
    assert found == {(n, entry["dashboard"], entry["panel"]) for n, rule in rules.items() for entry in rule["entries"]}


def first(board):
    return panels(board)[0]


def expr(text):
    return lambda board: (first(board)["targets"][0], "expr", text)


BREAKS = {
    "template-datasource-rule": lambda board: (variables(board)["datasource"], "label", "Source"),
    "template-job-rule": lambda board: (variables(board)["job"], "multi", False),
    "template-instance-rule": lambda board: (variables(board)["instance"], "allValue", ".*"),
    "template-label-promql-rule": lambda board: (variables(board)["job"], "query", "label_values(up{, job)"),
    "template-on-time-change-reload-rule": lambda board: (variables(board)["job"], "refresh", 1),
    "uneditable-dashboard": lambda board: (board, "editable", True),
    "panel-datasource-rule": lambda board: (first(board)["datasource"], "uid", "abc"),
    "panel-title-description-rule": lambda board: (first(board), "description", ""),
    "panel-units-rule": lambda board: (first(board)["fieldConfig"]["defaults"], "unit", "gigabytes"),
    "panel-no-targets-rule": lambda board: (first(board), "targets", []),
    "target-promql-rule": expr("sum(up"),
    "target-rate-interval-rule": expr('rate(up{job=~"$job",instance=~"$instance"}[5m])'),
    "target-job-rule": expr('up{instance=~"$instance"}'),
    "target-instance-rule": expr('up{job=~"$job"}'),
    "target-counter-agg-rule": expr('x_total{job=~"$job",instance=~"$instance"}'),
}


@pytest.mark.parametrize("rule", BREAKS)
@pytest.mark.parametrize("board", ["gpufrag-job"], indirect=True)
def test_linter_finds_broken_rule(board, rule):
    def complaints():
        return {item.rule for item in lint(board) if item.where in ("", first(board)["title"])}

    assert rule not in complaints()
    place, key, value = BREAKS[rule](board)
    place[key] = value
    assert rule in complaints()
