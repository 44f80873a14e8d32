"""The views of dashboards that are drawn and tested: the selected job and moment, and queries without an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpufrag.mixin import rules
from gpufrag.mixin.config import Config
from render_dashboards import fleet
from render_dashboards.grafana import Board
from render_dashboards.prometheus import Server, View, import_fleet, running

GRAFANA = Path(__file__).parents[2] / "grafana"
ALL = {"cluster": ".*", "namespace": ".*", "job_name": ".*", "job": ".+", "instance": ".+", "rank": ".*"}
NO_STEPS = dict.fromkeys(
    (
        "Margin by rank",
        "Smallest limit by allocator setting A",
        "Smallest limit by allocator setting B",
        "Allocations per step by rank",
    ),
    "the simulated fleet records no steps",
)
NOT_DEFRAGMENTED = dict.fromkeys(
    (
        "Largest possible allocation before and after A",
        "Largest possible allocation before and after B",
        "Moved bytes by rank",
        "Refused defragmentations by reason",
    ),
    "the simulated fleet is not defragmented",
)
NO_CONTEXT = "the driver shows no processes in the containers of this job"


class Choice(NamedTuple):
    uid: str
    job: Mapping[str, str] = {}
    moment: str = "peak"
    empty: Mapping[str, str] = {}
    """Why a panel, or a query of it, has no answer."""
    picture: str = ""


CHOICES = {
    "fleet": Choice("gpufrag-fleet", picture="dashboard-fleet.png"),
    "faulty job": Choice(
        "gpufrag-job",
        {"cluster": "", "namespace": "recsys", "job_name": "feature-cache"},
        empty={
            **NO_STEPS,
            **NOT_DEFRAGMENTED,
            "Memory of each rank now F": NO_CONTEXT,
            "Memory of the selected ranks F": NO_CONTEXT,
        },
        picture="dashboard-job.png",
    ),
    "healthy job": Choice(
        "gpufrag-job",
        {"cluster": "", "namespace": "vision", "job_name": "small-decoder"},
        "boundary",
        {**NO_STEPS, **NOT_DEFRAGMENTED, "Size of the last failed request": "no request of this job failed"},
    ),
    "devices": Choice("gpufrag-device", picture="dashboard-device.png"),
}


def read(uid: str) -> Board:
    board: Board = json.loads((GRAFANA / f"{uid}.json").read_text(encoding="utf-8"))
    return board


def view(server: Server, choice: Choice) -> View:
    return View(server, fleet.START, fleet.END, fleet.SCRAPE, {**ALL, **choice.job, "at": choice.moment})


@contextmanager
def prometheus(folder: Path) -> Iterator[Server]:
    """Run a Prometheus with the whole fleet in `folder`."""
    data = folder / "data"
    data.mkdir()
    import_fleet(data, fleet.exposition(), rules.rule_file(Config()), (fleet.START, fleet.END), fleet.SCRAPE)
    with running(data) as server:
        yield server
