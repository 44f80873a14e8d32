"""Grafana's dashboard-linter: the dashboards pass it, and each of its rules can be broken."""

from __future__ import annotations

import pytest

from mixin.dashboards.grafana import exclusions, lint, panels, variables


def test_the_linter_has_no_complaint_that_is_not_excluded(board, grafana_folder):
    excluded = exclusions(grafana_folder / ".lint")
    complaints = [item for item in lint(board) if (item.rule, board["title"], item.where) not in excluded]
    assert not complaints


def test_every_exclusion_is_needed(boards, grafana_folder):
    needed = {(item.rule, board["title"], item.where) for board in boards.values() for item in lint(board)}
    assert exclusions(grafana_folder / ".lint") == needed


def _first(board):
    return panels(board)[0]


def _set(place, key, value):
    place[key] = value


BREAKS = {
    "template-datasource-rule": lambda board: _set(variables(board)["datasource"], "label", "Source"),
    "template-job-rule": lambda board: _set(variables(board)["job"], "multi", False),
    "template-instance-rule": lambda board: _set(variables(board)["instance"], "allValue", ".*"),
    "template-label-promql-rule": lambda board: _set(variables(board)["job"], "query", "label_values(up{, job)"),
    "template-on-time-change-reload-rule": lambda board: _set(variables(board)["job"], "refresh", 1),
    "uneditable-dashboard": lambda board: _set(board, "editable", True),
    "panel-datasource-rule": lambda board: _set(_first(board)["datasource"], "uid", "abc"),
    "panel-title-description-rule": lambda board: _set(_first(board), "description", ""),
    "panel-units-rule": lambda board: _set(_first(board)["fieldConfig"]["defaults"], "unit", "gigabytes"),
    "panel-no-targets-rule": lambda board: _set(_first(board), "targets", []),
    "target-promql-rule": lambda board: _set(_first(board)["targets"][0], "expr", "sum(up"),
    "target-rate-interval-rule": lambda board: _set(
        _first(board)["targets"][0], "expr", 'rate(up{job=~"$job",instance=~"$instance"}[5m])'
    ),
    "target-job-rule": lambda board: _set(_first(board)["targets"][0], "expr", 'up{instance=~"$instance"}'),
    "target-instance-rule": lambda board: _set(_first(board)["targets"][0], "expr", 'up{job=~"$job"}'),
    "target-counter-agg-rule": lambda board: _set(
        _first(board)["targets"][0], "expr", 'x_total{job=~"$job",instance=~"$instance"}'
    ),
}


@pytest.mark.parametrize("rule", BREAKS)
@pytest.mark.parametrize("board", ["gpufrag-job"], indirect=True)
def test_a_broken_rule_is_told(board, rule):
    assert rule not in _complaints(board)
    BREAKS[rule](board)
    assert rule in _complaints(board)


def _complaints(board):
    """Of the whole and of the first panel."""
    return {item.rule for item in lint(board) if item.where in ("", _first(board)["title"])}
