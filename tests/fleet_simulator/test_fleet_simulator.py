"""Simulated ranks replay recorded traces and behave like a living job."""

import re
from itertools import pairwise

import pytest
import yaml

import running_server
from gpufrag import metrics
from gpufrag.cli import main
from gpufrag.demo.fleet_simulator import fleet, server
from gpufrag.demo.fleet_simulator.film import film
from gpufrag.web.runner import Service
from helpers import TESTS

BEGUN = 1_764_000_000.0
PERIOD = fleet.Period(play=300, restart=1800)
JOBS = fleet.jobs(3, 4, faulty=1)
FAULTY, HEALTHY = JOBS[0], JOBS[2]


@pytest.fixture(scope="module")
def films():
    return {name: film(name) for name in (fleet.HEALTHY, fleet.FRAGMENTING)}


def seen(films, job, seconds):
    return fleet.see(job, films, PERIOD, BEGUN, BEGUN + seconds)


def worst_ratio(view):
    (device,) = view.sample.devices
    return max(snapshot.measured.ratio for snapshot in device.snapshots)


def test_only_faulty_rank_fragments(films):
    ratios = {rank.sample.identity.rank: worst_ratio(rank) for rank in seen(films, FAULTY, 600).ranks}
    assert ratios.pop(FAULTY.fragmenting) > 4
    assert max(ratios.values()) < 2


def test_healthy_job_never_fragments(films):
    assert max(worst_ratio(rank) for second in range(0, 3600, 7) for rank in seen(films, HEALTHY, second).ranks) < 2


def test_restart_cures_faulty_rank(films):
    before, after = (seen(films, FAULTY, second).ranks[FAULTY.fragmenting] for second in (1799, 1801))
    assert (worst_ratio(before) > 4, worst_ratio(after) > 4) == (True, False)
    assert after.sample.identity.start == before.sample.identity.start + PERIOD.restart


def test_counters_never_decrease(films):
    for before, after in pairwise(seen(films, FAULTY, second) for second in range(0, 1790, 10)):
        for one, next_one in zip(before.ranks, after.ranks):
            old, new = (vars(rank.sample.devices[0].totals.counters) for rank in (one, next_one))
            assert [name for name in old if new[name] < old[name]] == []
            assert next_one.sample.steps > one.sample.steps


def test_every_oom_has_a_cause(films):
    (device,) = seen(films, FAULTY, 600).ranks[FAULTY.fragmenting].sample.devices
    assert sum(device.ooms.causes.values()) == device.totals.counters.ooms > 0


def test_jobs_are_spread_over_namespaces():
    jobs = fleet.jobs(50, 64, faulty=5)
    assert len({job.name for job in jobs}) == 50
    assert len({job.namespace for job in jobs}) == 5
    assert [job.name for job in jobs if job.fragmenting is not None] == [f"job-{n:02}" for n in range(5)]


@pytest.fixture(scope="module")
def running(films):
    with running_server.running(Service(server.app(JOBS, films, PERIOD, detail=False))) as found:
        yield found


def test_every_target_serves_its_job(running):
    targets = running.get("/targets").json()
    assert [found["labels"]["job_name"] for found in targets] == [job.name for job in JOBS]
    for found in targets:
        assert running.get(found["labels"]["__metrics_path__"]).text.count("\ngpufrag_up{") == 4
        assert found["targets"] == [f"127.0.0.1:{running.port}"]


def test_unknown_job_is_not_found(running):
    assert running.get("/jobs/nobody/metrics").status_code == 404


def test_index_lists_targets_and_jobs(running):
    lines = running.get("/").text.splitlines()
    assert lines[1].endswith("/targets")
    assert len(lines) == 2 + len(JOBS)


def test_no_detail_leaves_out_histograms(running):
    assert "_bucket" not in running.get("/jobs/job-00/metrics").text


def test_large_config_keeps_60_series_per_rank(films):
    """large.yml keeps the same series as --no-detail."""
    (scrape,) = yaml.safe_load((TESTS.parent / "deploy/prometheus/large.yml").read_text())["scrape_configs"]
    drop = re.compile("|".join(row["regex"] for row in scrape["metric_relabel_configs"]))
    text = metrics.render(seen(films, HEALTHY, 600))[1].decode()
    names = [re.split("[{ ]", line)[0] for line in text.splitlines() if "rank=" in line or "uuid=" in line]
    kept = [name for name in names if not drop.fullmatch(name)]
    assert len(kept) <= 60 * HEALTHY.ranks
    details = {row.name for row in metrics.TABLE if row.detail}
    assert [name for name in kept if re.sub("_(bucket|gcount|gsum)$", "", name) in details] == []
    assert {row.name for row in metrics.TABLE if drop.fullmatch(row.name)} == details


@pytest.mark.parametrize(
    "flags", [["--jobs", "0"], ["--ranks", "-1"], ["--play", "0s"], ["--play", "soon"], ["--faulty", "5"]]
)
def test_wrong_argument_is_refused(flags, capsys):
    assert main(["simulate-fleet", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1
