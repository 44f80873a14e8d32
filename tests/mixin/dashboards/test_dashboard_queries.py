"""The dashboards' queries on a real Prometheus that holds a simulated fleet with faults."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from gpufrag.mixin import recording
from gpufrag.mixin.config import Config
from gpufrag.mixin.dashboards import queries
from promtool import device
from render_dashboards import fleet, views
from render_dashboards.grafana import fill, panels, variables
from render_dashboards.prometheus import Server, View

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian: prometheus)")
    with views.prometheus(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture
def view(server: Server):
    def look(name: str) -> View:
        return views.view(server, views.CHOICES[name])

    return look


@pytest.mark.parametrize("name", views.CHOICES)
def test_every_query_has_an_answer_unless_expected(boards, view, name):
    choice = views.CHOICES[name]
    silent = {
        f"{panel['title']} {target['refId']}" if len(panel["targets"]) > 1 else panel["title"]
        for panel in panels(boards[choice.uid])
        for target, answer in zip(panel["targets"], view(name).ask(panel))
        if not answer
    }
    assert silent == set(choice.empty)


@pytest.mark.parametrize("name", views.CHOICES)
def test_every_variable_has_values(boards, server, view, name):
    """Except the cluster, which no scrape of this fleet sets."""
    for variable in variables(boards[views.CHOICES[name].uid]).values():
        if variable["type"] == "query":
            source, label = variable["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            found = server.at(f"count by ({label}) ({view(name).filled(source, fleet.SCRAPE)})", fleet.END)
            assert any(label in series.labels for series in found) == (label != "cluster"), label


@pytest.mark.parametrize(
    ("annotation", "moment", "quiet"), [("Out of memory", 1800, 120), ("Ranks started", 3840, 1800)]
)
def test_annotations_mark_errors_and_restarts(boards, server, view, annotation, moment, quiet):
    (note,) = (note for note in boards["gpufrag-job"]["annotations"]["list"] if note["name"] == annotation)
    expr = view("faulty job").filled(note["expr"], fleet.SCRAPE)
    found = server.over_time(expr, fleet.START, fleet.END, fleet.SCRAPE)
    marked = {when - fleet.START for series in found for when, _ in series.points}
    assert moment in marked
    assert quiet not in marked


def test_memory_parts_add_up_to_limit(boards, view):
    """The cap of these ranks is below the device size, so the parts inside the allocator and free add up to it."""
    (panel,) = (panel for panel in panels(boards["gpufrag-job"]) if panel["title"] == "Memory of each rank now")
    (organize,) = (item["options"] for item in panel["transformations"] if item["id"] == "organize")
    parts = dict(zip(organize["renameByName"].values(), view("faulty job").ask(panel)))
    inside = [
        {curve.series.labels["rank"]: curve.series.last for curve in parts[part]}
        for part in ("in use", "internal waste", "stranded", "reclaimable", "captive", "free")
    ]
    assert [sum(part[rank] for part in inside) for rank in "0123"] == 4 * [10 << 30]


def test_fleet_has_one_misconfigured_rank_and_one_leak(server):
    ratio = recording.actionable(Config(), Config().series)
    worst = f"max by (job_name, rank) (max_over_time(({ratio})[90m:1m]))"
    ratios = {(s.labels["job_name"], s.labels["rank"]): s.last for s in server.at(worst, fleet.END)}
    assert max(ratio for (job, _), ratio in ratios.items() if job in ("small-decoder", "streaming-asr")) < 2
    leaks = f"max_over_time({recording.RANK_LEFT}[90m])"
    assert {series.labels["job_name"] for series in server.at(leaks, fleet.END)} == {fleet.LEAKING[0]}
    misconfigured = ratios["feature-cache", str(fleet.MISCONFIGURED)]
    assert misconfigured > 3 * max(ratios["feature-cache", rank] for rank in "013")


ANY = dict.fromkeys(("cluster", "namespace", "job_name", "job", "instance", "rank", "at"), ".*")
POOLS = {
    # name: (large pool, small pool), bytes
    "active": (60, 2),
    "requested": (50, 1),
    "free_cached": (25, 2),
    "stranded": (20, 1),
    "reclaimable": (8, 1),
}
PARTS = {"in use": 62 - 3 - 11, "internal waste": 11, "stranded": 21, "reclaimable": 9, "free": 40}
"""Three of the active bytes wait for a stream."""


def torch():
    series = [
        device(
            f"gpufrag_allocator_{name}_bytes", value, pool=pool, at="" if name in ("active", "requested") else "timer"
        )
        for name, values in POOLS.items()
        for pool, value in zip(("large", "small"), values)
    ]
    free = PARTS["stranded"] + PARTS["reclaimable"] + PARTS["free"]
    return [
        *series,
        device("gpufrag_snapshot_active_bytes", 62, at="timer"),
        device("gpufrag_allocator_free_total_bytes", free, at="timer"),
    ]


def jax():
    """It reports no requested bytes and no snapshot."""
    figures = {"free_cached": 300, "free_total": 300, "largest_allocatable": 100}
    return [
        device("gpufrag_allocator_active_bytes", 500, framework="jax"),
        *(device(f"gpufrag_allocator_{n}_bytes", v, at="timer", framework="jax") for n, v in figures.items()),
    ]


@pytest.mark.parametrize("other", [[], jax()], ids=["alone", "next to JAX"])
@pytest.mark.parametrize("by", ["rank", ""])
def test_memory_parts_do_not_mix_allocators(judge, by, other):
    config = Config()
    selection = queries.Selection(config, (*queries.of_jobs(config, single=True), queries.RANK))
    exprs = {part.name: part.expr for part in queries.memory_parts(selection, by)}
    labels = '{rank="0"}' if by else "{}"
    tests = [
        {"expr": fill(exprs[name], ANY), "eval_time": "5m", "exp_samples": [{"labels": labels, "value": size}]}
        for name, size in PARTS.items()
    ]
    judge.ask({"input_series": [*torch(), *other], "promql_expr_test": tests})
