"""`gpufrag simulate-fleet` as a real Prometheus finds, scrapes and judges it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

import monitoring
from gpufrag.mixin import rules
from gpufrag.mixin.config import Config, Timing
from monitoring import Prometheus, eventually, python

pytestmark = pytest.mark.real
QUICK = replace(Config(), timing=Timing(interval=1, window=3, rate_window=6, hold=1))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, port = tmp_path_factory.mktemp("fleet"), monitoring.free_port()
    (folder / "rules.yaml").write_text(rules.rule_file(QUICK))
    targets = f"http://127.0.0.1:{port}/targets"
    scrape = {"job_name": "gpufrag", "scrape_interval": "1s", "http_sd_configs": [{"url": targets}]}
    command = python("-m", "gpufrag", "simulate-fleet", "--jobs", 3, "--ranks", 4, "--port", port, "--play", "2s")
    with monitoring.process(command, folder / "fleet.log"):
        eventually(lambda: httpx.get(targets, trust_env=False).is_success, "the fleet answers")
        with monitoring.prometheus(folder, {"rule_files": ["rules.yaml"], "scrape_configs": [scrape]}) as started:
            yield started


def test_every_rank_is_seen(prometheus):
    eventually(lambda: prometheus.values("count(gpufrag_up == 1)") == [12], "all ranks are scraped")


def test_only_the_faulty_job_is_accused(prometheus):
    trigger = 'ALERTS{alertname="GpuMemoryFragmented", alertstate="firing"}'
    eventually(lambda: prometheus.query(trigger), "the faulty job is fragmented")
    accused = prometheus.query('count by (job_name) (ALERTS{alertname=~"GpuMemory(Fragmented|NextRequestWillFail)"})')
    assert [series["metric"]["job_name"] for series in accused] == ["job-00"]
