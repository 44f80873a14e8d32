"""Two real Alertmanagers with the shipped config, and two restarters: one restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from helpers import TESTS
from monitoring import alertmanager, eventually
from restarter.fake_api.server import FakeApi
from restarter.restarter_process import Process, api_with_a_job, get, pod_of, suspensions, write_config
from restarter.webhook_bodies import ALERT

SHIPPED = TESTS.parent / "deploy" / "alertmanager" / "alertmanager.yml"
RANKS = 4

pytestmark = pytest.mark.real


def routing(folder: Path, *restarters: Process) -> dict[str, Any]:
    """Return the shipped config with short intervals, for these restarters."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "3s"}
    (receiver,) = [row for row in config["receivers"] if row["name"] == "restarter"]
    (hook,) = receiver["webhook_configs"]
    hook["http_config"]["authorization"]["credentials_file"] = str(folder / "token")
    receiver["webhook_configs"] = [{**hook, "url": one.url("/v1/alerts")} for one in restarters]
    return config


def fire(address: str, pod: str) -> None:
    """Send an alert for each rank of one job."""
    now = datetime.now(timezone.utc).isoformat()
    alerts = [
        {"labels": {**ALERT["labels"], "pod": pod, "rank": str(rank)}, "annotations": {}, "startsAt": now}
        for rank in range(RANKS)
    ]
    answer = httpx.post(f"http://{address}/api/v2/alerts", json=alerts, trust_env=False, timeout=10)
    assert answer.status_code == 200, answer.text


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with api_with_a_job() as one:
        yield one


@pytest.fixture
def restarters(api: FakeApi, tmp_path: Path) -> Iterator[list[Process]]:
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    with ExitStack() as stack:
        started = [begun(tmp_path / name, kubeconfig, stack) for name in ("one", "two")]
        for process in started:
            process.wait_until_it_listens()
        yield started


def begun(folder: Path, kubeconfig: Path, stack: ExitStack) -> Process:
    folder.mkdir()
    process = Process(folder, "--config", str(write_config(folder)), "--kubeconfig", str(kubeconfig))
    stack.callback(process.kill)
    return process


@pytest.fixture
def alertmanagers(restarters: list[Process], tmp_path: Path) -> Iterator[list[str]]:
    """Two without gossip, as after a network partition: each sends all alerts."""
    config = routing(tmp_path / "one", *restarters)
    with ExitStack() as stack:
        folders = [tmp_path / "am-one", tmp_path / "am-two"]
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(alertmanager(folder, config)) for folder in folders]


@pytest.mark.timeout(180)
def test_two_alertmanagers_and_two_restarters_restart_a_job_once(
    api: FakeApi, restarters: list[Process], alertmanagers: list[str]
) -> None:
    pod = pod_of(api)
    for address in alertmanagers:
        fire(address, pod)
    eventually(lambda: suspensions(api) == [True, False], "the job is restarted")
    eventually(lambda: all(calls(one) >= 4 for one in restarters), "all calls have come, and some of them again")
    eventually(lambda: "restarted" in [outcome for one in restarters for outcome in one.outcomes], "the job runs again")
    assert suspensions(api) == [True, False]
    assert [outcome for one in restarters for outcome in one.outcomes].count("started") == 1


def calls(process: Process) -> int:
    (line,) = [one for one in get(process, "/metrics").text.splitlines() if 'calls_total{answer="accepted"}' in one]
    return int(float(line.split()[-1]))
