"""The dashboards over a real Prometheus that holds a fleet in trouble: queries have answers, panels are drawn.

With GPUFRAG_UPDATE=1 the pictures in docs/img are drawn anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from gpufrag.mixin.alert import AWAITED

from gpufrag.metrics import TABLE
from gpufrag.mixin import recording, rules
from gpufrag.mixin.config import Config
from mixin.dashboards.grafana import Panel, panels, selectors, variables
from mixin.dashboards.render import page, story
from mixin.dashboards.render.answers import View
from mixin.dashboards.render.prometheus import Server, fill, running

pytestmark = pytest.mark.real

IMAGES = Path(__file__).parents[3] / "docs" / "img"
EVERYTHING = {"cluster": ".*", "namespace": ".*", "job_name": ".*", "job": ".+", "instance": ".+", "rank": ".*"}
AWAITED_NOW = set(AWAITED) - {row.name for row in TABLE}


class Look(NamedTuple):
    """Somebody's look at a dashboard: the job chosen, the moment chosen, and which queries have no answer, and why."""

    uid: str
    job: Mapping[str, str] = {}
    moment: str = "peak"
    empty: Mapping[str, str] = {}
    """By panel, or panel and part: the reason."""


INSIDE = ("in use", "internal waste", "stranded", "reclaimable", "captive", "free")
HIDDEN = "the driver shows no processes in the containers of this job"
LOOKS = {
    "fleet": Look("gpufrag-fleet"),
    "faulty job": Look(
        "gpufrag-job",
        {"cluster": "", "namespace": "recsys", "job_name": "feature-cache"},
        empty={"Where each rank's memory is now F": HIDDEN, "Memory of the ranks shown F": HIDDEN},
    ),
    "healthy job": Look(
        "gpufrag-job",
        {"cluster": "", "namespace": "vision", "job_name": "small-decoder"},
        "boundary",
        {"Size of the last request that failed": "none of this job's requests failed"},
    ),
    "devices": Look("gpufrag-device"),
}
PICTURES = {"fleet": "dashboard-fleet.png", "faulty job": "dashboard-job.png", "devices": "dashboard-device.png"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian: prometheus)")
    data = tmp_path_factory.mktemp("prometheus") / "data"
    data.mkdir()
    fill(data, story.exposition(), rules.rule_file(Config()), (story.START, story.END), story.SCRAPE)
    with running(data) as server:
        yield server


@pytest.fixture
def view(server: Server):
    def look(name: str) -> View:
        values = {**EVERYTHING, **LOOKS[name].job, "at": LOOKS[name].moment}
        return View(server, story.START, story.END, story.SCRAPE, values)

    return look


def _awaits(board, panel: Panel) -> bool:
    """Whether it shows nothing but metrics that a later feature brings."""
    named = {selector.name for target in panel["targets"] for selector, _ in selectors(board, target["expr"])}
    return named <= AWAITED_NOW


@pytest.mark.parametrize("name", LOOKS)
def test_every_query_has_an_answer_or_a_reason_to_have_none(boards, view, name):
    board = boards[LOOKS[name].uid]
    silent = {
        f"{panel['title']} {target['refId']}" if len(panel["targets"]) > 1 else panel["title"]
        for panel in panels(board)
        for target, answer in zip(panel["targets"], view(name).ask(panel))
        if not answer
    }
    waiting = {panel["title"] for panel in panels(board) if _awaits(board, panel)}
    assert silent == waiting | set(LOOKS[name].empty)


@pytest.mark.parametrize("name", PICTURES)
def test_every_panel_can_be_drawn(boards, view, name, tmp_path):
    board = boards[LOOKS[name].uid]
    file = (IMAGES if os.environ.get("GPUFRAG_UPDATE") else tmp_path) / PICTURES[name]
    blank = page.draw(board, view(name), file)
    assert blank == [panel["title"] for panel in panels(board) if _awaits(board, panel)]
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", LOOKS)
def test_every_variable_offers_what_the_fleet_has(boards, server, view, name):
    """But for the cluster, which no scrape of this fleet sets: its panels are full all the same."""
    for variable in variables(boards[LOOKS[name].uid]).values():
        if variable["type"] == "query":
            source, label = variable["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            found = server.at(f"count by ({label}) ({view(name).filled(source, story.SCRAPE)})", story.END)
            assert any(label in series.labels for series in found) == (label != "cluster"), label


@pytest.mark.parametrize(
    ("annotation", "moment", "quiet"), [("Out of memory", 1800, 120), ("Ranks started", 3840, 1800)]
)
def test_annotations_mark_the_errors_and_the_restart(boards, server, view, annotation, moment, quiet):
    (note,) = (note for note in boards["gpufrag-job"]["annotations"]["list"] if note["name"] == annotation)
    expr = view("faulty job").filled(note["expr"], story.SCRAPE)
    found = server.over_time(expr, story.START, story.END, story.SCRAPE)
    marked = {when - story.START for series in found for when, _ in series.points}
    assert moment in marked
    assert quiet not in marked


def test_parts_of_memory_add_up_to_the_limit(boards, view):
    """These ranks have a cap below their device: what is in the allocator and what is free make up the cap."""
    (panel,) = (panel for panel in panels(boards["gpufrag-job"]) if panel["title"] == "Where each rank's memory is now")
    (organize,) = (item["options"] for item in panel["transformations"] if item["id"] == "organize")
    parts = dict(zip(organize["renameByName"].values(), view("faulty job").ask(panel)))
    inside = [{curve.series.labels["rank"]: curve.series.last for curve in parts[part]} for part in INSIDE]
    assert [sum(part[rank] for part in inside) for rank in "0123"] == 4 * [10 << 30]


def test_the_story_is_the_one_that_is_told(server):
    """One rank of one job lacks its setting; two jobs are healthy at all times."""
    ratio = recording.actionable(Config(), Config().series)
    worst = f"max by (job_name, rank) (max_over_time(({ratio})[90m:1m]))"
    ratios = {(s.labels["job_name"], s.labels["rank"]): s.last for s in server.at(worst, story.END)}
    assert max(ratio for (job, _), ratio in ratios.items() if job in ("small-decoder", "streaming-asr")) < 2
    leaks = f"max_over_time({recording.RANK_LEFT}[90m])"
    assert {series.labels["job_name"] for series in server.at(leaks, story.END)} == {"sequence-sweep"}
    assert ratios["feature-cache", str(story.FORGOTTEN)] > 3 * max(ratios["feature-cache", rank] for rank in "013")
