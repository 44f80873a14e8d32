"""The checked-in dashboards: up to date, importable, and built from metrics that exist."""

from __future__ import annotations

import json
import re
import sys
from itertools import combinations

import pytest

from gpufrag.errors import Unavailable
from gpufrag.metrics import TABLE
from gpufrag.mixin import dashboards, recording
from gpufrag.mixin.config import Config, Thresholds
from helpers import TESTS, kept
from mixin.dashboards.linter import names_in
from render_dashboards.grafana import fill, panels, targets, variables
from render_dashboards.views import GRAFANA

NEEDS_SDK = pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
DOCS = TESTS.parent / "docs"
FROM_PROMETHEUS = {"up", "ALERTS"}
RECORDED = {rule.record for rule in (*recording.rank_rules(Config()), *recording.job_rules(Config()))}
EXPORTED = {row.name for row in TABLE}
BUCKETS = {f"{row.name}_{end}" for row in TABLE if row.kind == "gaugehistogram" for end in ("bucket", "gcount", "gsum")}


@NEEDS_SDK
def test_checked_in_dashboards_are_up_to_date():
    built = dashboards.files(Config())
    assert {path.name for path in GRAFANA.glob("*.json")} == set(built)
    for name, text in built.items():
        kept(GRAFANA / name, text)


@NEEDS_SDK
def test_config_reaches_every_query():
    config = Config(
        selector='team=~"a",region="eu"', job_labels=("team", "job"), thresholds=Thresholds(fragmentation_ratio=7)
    )
    files = dashboards.files(config)
    for board in map(json.loads, files.values()):
        assert all('team=~"a"' in expr for _, expr in targets(board))
        assert all('region="eu"' in expr for _, expr in targets(board) if not re.search("job:|ALERTS", expr))
        assert {"team", "job", "instance"} <= set(variables(board))
        assert "job_name" not in json.dumps([expr for _, expr in targets(board)])
    assert '"value": 7' in files["gpufrag-job.json"]


@NEEDS_SDK
def test_grafana_types_read_dashboard(board):
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    read = Dashboard.from_json(board)
    assert [panel.title for panel in read.panels] == [panel["title"] for panel in board["panels"]]


def test_missing_sdk_error_says_what_to_install(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gpufrag.mixin.dashboards.")]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("device", "document", "fleet", "job"):
        monkeypatch.delattr(dashboards, module, raising=False)
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk.builders", None)
    with pytest.raises(Unavailable, match=r"pip install 'gpufrag\[mixin\]'"):
        dashboards.files(Config())


def test_dashboard_identity(board, boards):
    assert boards[board["uid"]] == board
    assert board["schemaVersion"] >= 39
    assert board["tags"] == ["gpufrag", "gpu"]
    assert not {"id", "__inputs"} & set(board), "Grafana would ask questions on import"
    assert {need["id"] for need in board["__requires"]} >= {panel["type"] for panel in panels(board)}


def test_panels_are_distinct_and_fill_their_lines(board):
    ids, titles = zip(*((panel["id"], panel["title"]) for panel in panels(board)))
    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)
    places = [panel["gridPos"] for panel in board["panels"]]
    for one, other in combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)
    widths: dict[int, int] = {}
    for place in places:
        widths[place["y"]] = widths.get(place["y"], 0) + place["w"]
    assert set(widths.values()) == {24}


def test_descriptions_are_sentences_without_metric_names(board):
    for panel in panels(board):
        assert re.fullmatch(r"[A-Za-z1].{20,}[.]", panel["description"]), panel["title"]
        assert "gpufrag_" not in panel["description"], panel["title"]


def test_queries_name_only_known_metrics_and_variables(board):
    named = set().union(*(names_in(board, expr) for _, expr in targets(board)))
    named |= set().union(*(names_in(board, note["expr"]) for note in board["annotations"]["list"]))
    assert named <= EXPORTED | BUCKETS | RECORDED | FROM_PROMETHEUS
    known = {label for row in TABLE for label in row.labels} | set(Config().job_labels) | {"instance"}
    assert set(variables(board)) - {"datasource"} <= known
    for _, expr in targets(board):
        filled = fill(expr, dict.fromkeys(variables(board), "x"))
        assert not re.search(r"\$[^0-9]", filled)  # $1 belongs to label_replace


def links_of(panel):
    properties = [item for override in panel["fieldConfig"]["overrides"] for item in override["properties"]]
    cells = [link for item in properties if item["id"] == "links" for link in item["value"]]
    defaults = panel["fieldConfig"]["defaults"].get("links", ())
    return [link["url"] for link in (*panel.get("links", ()), *defaults, *cells)]


def test_links_lead_to_dashboards(board, boards):
    assert {link["url"] for link in board["links"]} == {f"/d/{uid}" for uid in boards if uid != board["uid"]}
    for url in (url for panel in panels(board) for url in links_of(panel)):
        opened = re.match(r"/d/([\w-]+)\?", url)
        assert opened, url
        assert set(re.findall(r"var-(\w+)=", url)) <= set(variables(boards[opened[1]]))


@NEEDS_SDK
def test_runbook_url_adds_links_to_runbooks():
    config = Config(runbook_url="https://wiki/gpu")
    boards = [json.loads(text) for text in dashboards.files(config).values()]
    assert all("https://wiki/gpu" in [link["url"] for link in board["links"]] for board in boards)
    urls = {url for board in boards for panel in panels(board) for url in links_of(panel) if "/d/" not in url}
    runbooks = {config.runbook(page.stem) for page in (DOCS / "runbooks").glob("*.md")}
    assert config.runbook("GpuMemoryFragmented") in urls
    assert urls <= {*runbooks, config.runbook("${__data.fields.Alert}")}


@pytest.mark.parametrize("board", ["gpufrag-fleet", "gpufrag-job"], indirect=True)
def test_trigger_is_a_dashed_line_on_the_ratio(board):
    (panel,) = [panel for panel in panels(board) if "ragmentation ratio by" in panel["title"]]
    defaults = panel["fieldConfig"]["defaults"]
    assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, 4.0]
    assert defaults["custom"]["thresholdsStyle"]["mode"] == "dashed"


def test_annotations_mark_ooms_and_starts(board):
    assert [note["name"] for note in board["annotations"]["list"]] == ["Out of memory", "Ranks started"]
    assert all(note["enable"] and note["titleFormat"] for note in board["annotations"]["list"])


def test_scale_page_lists_panels_that_are_empty_without_detail(board):
    page = " ".join((DOCS / "scale.md").read_text(encoding="utf-8").split())
    detail = {row.name for row in TABLE if row.detail}
    for panel in panels(board):
        named = set().union(*(names_in(board, target["expr"]) for target in panel["targets"]))
        plain = {re.sub("_(bucket|gcount|gsum)$", "", name) for name in named}
        assert (plain <= detail) == (f'"{panel["title"]}"' in page), panel["title"]
