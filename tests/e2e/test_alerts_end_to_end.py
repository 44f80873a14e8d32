"""From a fragmented heap to a webhook call and back; only the GPU is simulated.

Two jobs with two ranks and a real sidecar each. Every rank is a process with a real agent, whose allocator replays a
recorded trace. Rank 1 of `llm` fragments until it is replaced, like by a restart.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import monitoring
from gpufrag.mixin import recording, rules
from gpufrag.mixin.config import Config, Timing
from helpers import TESTS
from monitoring import Prometheus, Receiver, eventually, python

pytestmark = pytest.mark.real

HEALTHY, FRAGMENTING = "train-cap4", "cache-default"
QUICK = replace(
    Config(), timing=Timing(interval=1, window=3, rate_window=6, hold=2, keep_firing=1, event=30, memory=30)
)
TRIGGER = 'ALERTS{alertname="GpuMemoryFragmented", alertstate="firing"}'
ALERTMANAGER = TESTS.parent / "deploy" / "alertmanager" / "alertmanager.yml"


@dataclass
class Job:
    """A job's folder, the port of its sidecar, and its ranks."""

    name: str
    folder: Path
    port: int
    ranks: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)


@dataclass
class Fleet:
    prometheus: Prometheus
    receiver: Receiver
    jobs: dict[str, Job]
    stack: ExitStack

    def start(self, job: str, rank: int, trace: str) -> None:
        where = self.jobs[job]
        environment = {"GPUFRAG_DIR": str(where.folder), "RANK": str(rank), "WORLD_SIZE": "2"}
        command = python("-m", "gpufrag.demo.rank", trace, "3")
        log = where.folder.with_suffix(".log")
        where.ranks[rank] = self.stack.enter_context(monitoring.process(command, log, environment))

    def restart(self, job: str, rank: int, trace: str) -> None:
        monitoring.end(self.jobs[job].ranks[rank])
        self.start(job, rank, trace)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("e2e")
    with ExitStack() as stack:
        receiver = stack.enter_context(monitoring.receiver())
        address = stack.enter_context(monitoring.alertmanager(folder, routing(receiver, folder)))
        jobs = {name: job(stack, folder, name) for name in ("llm", "vision")}
        (folder / "rules.yaml").write_text(rules.rule_file(QUICK))
        prometheus = stack.enter_context(monitoring.prometheus(folder, scraping(jobs.values(), address)))
        fleet = Fleet(prometheus, receiver, jobs, stack)
        for name, rank, trace in (
            ("llm", 0, HEALTHY),
            ("llm", 1, FRAGMENTING),
            ("vision", 0, HEALTHY),
            ("vision", 1, HEALTHY),
        ):
            fleet.start(name, rank, trace)
        yield fleet


def job(stack: ExitStack, folder: Path, name: str) -> Job:
    found = Job(name, folder / name, monitoring.free_port())
    found.folder.mkdir()
    command = python("-m", "gpufrag", "serve", "--folder", found.folder, "--port", found.port)
    stack.enter_context(monitoring.process(command, folder / f"{name}.log"))
    ready = f"http://127.0.0.1:{found.port}/-/ready"
    eventually(lambda: httpx.get(ready, trust_env=False).is_success, f"the sidecar of {name} is ready")
    return found


def scraping(jobs: Any, alertmanager: str) -> dict[str, Any]:
    targets = [
        {
            "targets": [f"127.0.0.1:{job.port}"],
            "labels": {"namespace": "ml", "job_name": job.name, "pod": f"{job.name}-0"},
        }
        for job in jobs
    ]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "gpufrag", "static_configs": targets}],
    }


def routing(receiver: Receiver, folder: Path) -> dict[str, Any]:
    """The shipped config with short intervals and local receivers."""
    config: dict[str, Any] = yaml.safe_load(ALERTMANAGER.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "2s"}
    hooks = {row["name"]: row.setdefault("webhook_configs", [{}])[0] for row in config["receivers"]}
    for name, hook in hooks.items():
        hook["url"] = f"{receiver.url}/{name}"
    (folder / "token").write_text("secret")
    hooks["restarter"]["http_config"]["authorization"]["credentials_file"] = str(folder / "token")
    return config


def names(alerts: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(alert["labels"]["alertname"], alert["labels"].get("job_name")) for alert in alerts}


FRAGMENTED_LLM = ("GpuMemoryFragmented", "llm")


@pytest.mark.timeout(480)
def test_trigger_fires_and_resolves_after_restart(fleet):
    restart = eventually(lambda: fleet.receiver.calls["/restarter"], "the restarter is called")[0]
    eventually(lambda: FRAGMENTED_LLM in names(fleet.receiver.alerts("/people", "firing")), "people receive the alert")

    check_the_call(restart, fleet)
    check_every_recording_rule_has_data(fleet)

    fleet.restart("llm", 1, HEALTHY)
    eventually(lambda: not fleet.prometheus.query(TRIGGER), "the alert ends after the restart")
    eventually(
        lambda: FRAGMENTED_LLM in names(fleet.receiver.alerts("/people", "resolved")), "people receive the resolution"
    )

    assert fleet.receiver.alerts("/restarter", "resolved") == []
    check_healthy_job_has_no_alert(fleet)


def check_the_call(call: dict[str, Any], fleet: Fleet) -> None:
    """One group is one job; labels and annotations identify the rank."""
    assert call["groupLabels"] == {"alertname": "GpuMemoryFragmented", "namespace": "ml", "job_name": "llm"}
    (alert,) = call["alerts"]
    assert alert["labels"]["gpufrag_action"] == "restart"
    assert {key: alert["annotations"][key] for key in ("worst_rank", "worst_pod")} == {
        "worst_rank": "1",
        "worst_pod": "llm-0",
    }
    assert "(rank 1, device 0, pod llm-0" in alert["annotations"]["description"]
    assert fleet.receiver.tokens == {"Bearer secret", None}


def check_every_recording_rule_has_data(fleet: Fleet) -> None:
    records = [rule["record"] for group in rules.groups(QUICK) for rule in group["rules"] if "record" in rule]
    silent = [record for record in records if not fleet.prometheus.query(f'{record}{{job_name="llm"}}')]
    assert silent == [recording.RANK_LEFT], "nothing leaks here"
    assert max(fleet.prometheus.values('job:gpufrag_fragmentation:max_ratio{job_name="vision"}')) < 2


def check_healthy_job_has_no_alert(fleet: Fleet) -> None:
    """Pending alerts count too."""
    alerts = fleet.prometheus.query('count_over_time(ALERTS{job_name="vision"}[10m])')
    assert [series["metric"]["alertname"] for series in alerts] == []
    failures = fleet.prometheus.get("rules")["groups"]
    assert [rule["name"] for group in failures for rule in group["rules"] if rule["health"] != "ok"] == []
