"""`gpufrag simulate-fleet`, discovered, scraped and evaluated by a real Prometheus."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

import monitoring
from gpufrag.doctor import prometheus as checks
from gpufrag.doctor.checks import Fail, Ok, examine
from gpufrag.mixin import rules
from gpufrag.mixin.config import Config, Timing
from gpufrag.web.client import Client
from monitoring import eventually, python

pytestmark = pytest.mark.real
QUICK = replace(Config(), timing=Timing(interval=1, window=3, rate_window=6, hold=1))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("fleet"), monitoring.free_port()
    (folder / "rules.yaml").write_text(rules.rule_file(QUICK))
    targets = f"http://127.0.0.1:{port}/targets"
    scrape = {"job_name": "gpufrag", "scrape_interval": "1s", "http_sd_configs": [{"url": targets}]}
    command = python("-m", "gpufrag", "simulate-fleet", "--jobs", 3, "--ranks", 4, "--port", port, "--play", "2s")
    with monitoring.process(command, folder / "fleet.log"):
        eventually(lambda: httpx.get(targets, trust_env=False).is_success, "the fleet answers")
        with monitoring.prometheus(folder, {"rule_files": ["rules.yaml"], "scrape_configs": [scrape]}) as started:
            yield started


def test_every_rank_is_scraped(prometheus):
    eventually(lambda: prometheus.values("count(gpufrag_up == 1)") == [12], "all ranks are scraped")


def test_only_faulty_job_has_memory_alerts(prometheus):
    trigger = 'ALERTS{alertname="GpuMemoryFragmented", alertstate="firing"}'
    eventually(lambda: prometheus.query(trigger), "the faulty job is fragmented")
    accused = prometheus.query('count by (job_name) (ALERTS{alertname=~"GpuMemory(Fragmented|NextRequestWillFail)"})')
    assert [series["metric"]["job_name"] for series in accused] == ["job-00"]


def test_doctor_counts_targets_and_ranks(prometheus):
    context = checks.Prometheus(Client(prometheus.url))
    found = eventually(
        lambda: {one.check: one.result for one in examine("prometheus", checks.CHECKS, context)}, "doctor runs"
    )
    assert found["targets"].text.startswith("3 sidecar(s), 12 rank(s)")
    assert isinstance(found["labels"], Ok)
    assert isinstance(found["rules"], Ok)
    assert isinstance(found["alertmanagers"], Fail)
