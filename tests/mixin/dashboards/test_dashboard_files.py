"""The checked-in dashboards: up to date, importable as they are, and made of metrics that exist."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import combinations
from pathlib import Path

import pytest
from gpufrag.mixin.alert import AWAITED

from gpufrag.errors import Unavailable
from gpufrag.metrics import TABLE
from gpufrag.mixin import dashboards, recording
from gpufrag.mixin.config import Config, Thresholds
from mixin.dashboards.grafana import fill, panels, selectors, targets, variables

NEEDS_SDK = pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
OUTSIDE = {"up", "ALERTS"}  # what Prometheus itself writes
RECORDED = {rule.record for rule in (*recording.rank_rules(Config()), *recording.job_rules(Config()))}
EXPORTED = {row.name for row in TABLE}
BUCKETS = {f"{row.name}_{end}" for row in TABLE if row.kind == "gaugehistogram" for end in ("bucket", "gcount", "gsum")}


@NEEDS_SDK
def test_the_files_are_up_to_date(grafana_folder):
    for name, built in dashboards.build(Config()).items():
        text = json.dumps(built, indent=2, sort_keys=True) + "\n"
        if os.environ.get("GPUFRAG_UPDATE"):
            (grafana_folder / name).write_text(text, encoding="utf-8")
        assert (grafana_folder / name).read_text(encoding="utf-8") == text, f"{name}: run with GPUFRAG_UPDATE=1"


@NEEDS_SDK
def test_no_other_file_lies_beside_them(grafana_folder):
    assert {path.name for path in grafana_folder.glob("*.json")} == set(dashboards.build(Config()))


@NEEDS_SDK
def test_a_config_reaches_every_query():
    config = Config(
        selector='team=~"a",region="eu"', job_labels=("team", "job"), thresholds=Thresholds(fragmentation_ratio=7)
    )
    for built in dashboards.build(config).values():
        assert all('team=~"a"' in expr for _, expr in targets(built))
        assert all('region="eu"' in expr for _, expr in targets(built) if not re.search("job:|ALERTS", expr))
        assert {"team", "job", "instance"} <= set(variables(built)), "each label of a job is a variable"
        assert "job_name" not in json.dumps([expr for _, expr in targets(built)])
    assert '"value": 7' in json.dumps(dashboards.build(config)["gpufrag-job.json"])


@NEEDS_SDK
def test_grafanas_own_types_read_them(board):
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    read = Dashboard.from_json(board)
    assert [panel.title for panel in read.panels] == [panel["title"] for panel in board["panels"]]


def test_without_the_sdk_the_error_names_the_cure(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gpufrag.mixin.dashboards.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(dashboards, "fleet", raising=False)
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk.builders", None)
    with pytest.raises(Unavailable, match=r"pip install 'gpufrag\[mixin\]'"):
        dashboards.build(Config())


def test_identity(board, boards):
    assert boards[board["uid"]] == board
    assert board["schemaVersion"] >= 39
    assert board["tags"] == ["gpufrag", "gpu"]
    assert not {"id", "__inputs"} & set(board), "an import asks no question"
    assert {need["id"] for need in board["__requires"]} >= {panel["type"] for panel in panels(board)}


def test_panels_have_ids_and_places_of_their_own(board):
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for one, other in combinations(board["panels"], 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    assert all(place["x"] + place["w"] <= 24 for place in (panel["gridPos"] for panel in board["panels"]))


def _overlap(one, other) -> bool:
    apart = (
        one["x"] + one["w"] <= other["x"]
        or other["x"] + other["w"] <= one["x"]
        or one["y"] + one["h"] <= other["y"]
        or other["y"] + other["h"] <= one["y"]
    )
    return not apart


def test_lines_of_panels_are_full(board):
    filled: dict[int, int] = {}
    for panel in board["panels"]:
        filled[panel["gridPos"]["y"]] = filled.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert set(filled.values()) == {24}


def test_titles_tell_panels_apart(board):
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)


def test_descriptions_are_sentences_that_say_more_than_the_title(board):
    for panel in panels(board):
        assert re.fullmatch(r"(?s)\S.{30,}[.]", panel["description"]), panel["title"]
        assert "gpufrag_" not in panel["description"], "a user's words, not a metric's name"


def test_metrics_exist_or_are_awaited(board):
    named = {selector.name for _, expr in targets(board) for selector, _ in selectors(board, expr)}
    named |= {selector.name for note in board["annotations"]["list"] for selector, _ in selectors(board, note["expr"])}
    assert named <= EXPORTED | BUCKETS | RECORDED | OUTSIDE | set(AWAITED)


def test_labels_of_variables_exist(board):
    known = {label for row in TABLE for label in row.labels} | set(Config().job_labels) | {"instance"}
    assert set(variables(board)) - {"datasource"} <= known


def test_every_dashboard_leads_to_the_others_and_to_the_runbooks(board, boards):
    urls = {link["url"] for link in board["links"]}
    assert urls == {f"/d/{uid}" for uid in boards if uid != board["uid"]} | {Config().runbook_url}


def test_links_of_panels_lead_somewhere(board, boards):
    runbooks = {Config().runbook(page.stem) for page in RUNBOOKS.glob("*.md")}
    for panel in panels(board):
        for url in _links(panel):
            dashboard = re.match(r"/d/([\w-]+)\?", url)
            assert (dashboard and dashboard[1] in boards) or url in runbooks or "${__data.fields.Alert}.md" in url, url


def test_links_name_variables_of_the_dashboard_that_they_open(board, boards):
    for panel in panels(board):
        for url in _links(panel):
            if opened := re.match(r"/d/([\w-]+)\?", url):
                assert set(re.findall(r"var-(\w+)=", url)) <= set(variables(boards[opened[1]]))


def _links(panel):
    properties = [item for override in panel["fieldConfig"]["overrides"] for item in override["properties"]]
    cells = [link for item in properties if item["id"] == "links" for link in item["value"]]
    return [
        link["url"] for link in (*panel.get("links", ()), *panel["fieldConfig"]["defaults"].get("links", ()), *cells)
    ]


def test_the_trigger_is_a_line_on_the_ratio(board):
    ratios = [panel for panel in panels(board) if "ragmentation ratio by" in panel["title"]]
    for panel in ratios:
        defaults = panel["fieldConfig"]["defaults"]
        assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, 4.0]
        assert defaults["custom"]["thresholdsStyle"]["mode"] == "dashed"
    assert ratios or board["uid"] == "gpufrag-device"


def test_annotations_mark_ooms_and_restarts(board):
    assert [note["name"] for note in board["annotations"]["list"]] == ["Out of memory", "Ranks started"]
    assert all(note["enable"] and note["titleFormat"] for note in board["annotations"]["list"])


def test_every_variable_of_a_query_is_defined(board):
    known = dict.fromkeys(variables(board), "x")
    for _, expr in targets(board):
        assert not re.search(r"\$[^0-9]", fill(expr, known))  # $1 belongs to label_replace


def test_the_page_on_scale_names_what_is_empty_without_detail(board):
    """And no panel besides shows nothing then."""
    page = " ".join((RUNBOOKS.parent / "scale.md").read_text(encoding="utf-8").split())
    detail = {row.name for row in TABLE if row.detail}
    for panel in panels(board):
        named = {s.name for target in panel["targets"] for s, _ in selectors(board, target["expr"])}
        plain = {re.sub("_(bucket|gcount|gsum)$", "", name) for name in named}
        assert (plain <= detail) == (f'"{panel["title"]}"' in page), panel["title"]
