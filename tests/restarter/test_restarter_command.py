"""`gpufrag restarter` as a process: from a webhook call to a restarted job, and the check of its config."""

from __future__ import annotations

import sys
from datetime import datetime, timezone

import httpx
import pytest
import yaml

from gpufrag.cli import main
from helpers import TESTS
from monitoring import alertmanager, eventually
from restarter.restarter_process import Process, api_with_a_job, pod_of, suspensions, write_config
from restarter.webhook_bodies import ALERT

SHIPPED = TESTS.parent / "deploy" / "alertmanager" / "alertmanager.yml"


@pytest.fixture
def api():
    with api_with_a_job() as one:
        yield one


@pytest.fixture
def start(api, tmp_path):
    """Start a restarter on the fake API server; keyword arguments change its config."""
    started = []
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")

    def run(**changes):
        folder = tmp_path / f"restarter-{len(started)}"
        folder.mkdir()
        started.append(Process(folder, "--config", write_config(folder, **changes), "--kubeconfig", kubeconfig))
        started[-1].wait_until_it_listens()
        return started[-1]

    yield run
    for process in started:
        process.kill()


def test_webhook_call_restarts_a_job(api, start):
    process = start()
    process.eventually(lambda: process.get("/-/ready").status_code == 200)
    process.send(pod=pod_of(api))
    process.eventually(lambda: process.outcomes[-1:] == ["restarted"])
    assert suspensions(api) == [True, False]
    assert process.count('actions_total{kind="Job.batch",result="restarted"}') == 1
    assert [one["outcome"] for one in process.get("/v1/decisions").json()] == ["restarted", "started"]
    assert process.end() == 0


def test_dry_run_stores_nothing(api, start):
    process = start(policy={"namespaces": ["ml"]})
    process.send(pod=pod_of(api))
    process.eventually(lambda: process.outcomes == ["would-restart"])
    assert all(one.dry_run for one in api.sent("PATCH"))


def test_job_of_a_killed_restarter_is_resumed(api, start):
    first = start()
    api.world.grace_ticks = 10**9
    first.send(pod=pod_of(api))
    first.eventually(lambda: suspensions(api) == [True])
    first.kill()
    api.world.grace_ticks = 2
    second = start()
    second.eventually(lambda: second.outcomes == ["taken-over", "restarted"])
    assert suspensions(api) == [True, False]


@pytest.fixture
def alertmanagers(start, tmp_path):
    """Two restarters, and two Alertmanagers without gossip, as after a network partition: each sends all alerts."""
    restarters = [start(), start()]
    config = yaml.safe_load(SHIPPED.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "3s"}
    (receiver,) = [row for row in config["receivers"] if row["name"] == "restarter"]
    (hook,) = receiver["webhook_configs"]
    hook["http_config"]["authorization"]["credentials_file"] = str(tmp_path / "restarter-0" / "token")
    receiver["webhook_configs"] = [{**hook, "url": one.url("/v1/alerts")} for one in restarters]
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with alertmanager(folders[0], config) as one, alertmanager(folders[1], config) as two:
        yield restarters, [one, two]


@pytest.mark.real
@pytest.mark.timeout(180)
def test_two_alertmanagers_and_two_restarters_restart_once(api, alertmanagers):
    restarters, addresses = alertmanagers
    now = {"annotations": {}, "startsAt": datetime.now(timezone.utc).isoformat()}
    labels = {**ALERT["labels"], "pod": pod_of(api)}
    alerts = [{**now, "labels": {**labels, "rank": str(rank)}} for rank in range(4)]
    for address in addresses:
        httpx.post(f"http://{address}/api/v2/alerts", json=alerts, trust_env=False, timeout=10).raise_for_status()

    def outcomes() -> list[str]:
        return [outcome for one in restarters for outcome in one.outcomes]

    eventually(lambda: suspensions(api) == [True, False], "the job is restarted")
    eventually(lambda: all(one.count('calls_total{answer="accepted"}') >= 4 for one in restarters), "calls repeat")
    eventually(lambda: "restarted" in outcomes(), "the job runs again")
    assert suspensions(api) == [True, False]
    assert outcomes().count("started") == 1


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command with a config that has these changes. Return its exit code and the only line that it prints."""

    def run(*options, **changes):
        code = main(["restarter", *map(str, options), "--config", str(write_config(tmp_path, **changes))])
        shown = capsys.readouterr()
        assert (shown.out + shown.err).count("\n") == 1
        return code, shown.err if code else shown.out

    return run


@pytest.mark.parametrize("address", [":0", "127.0.0.1:0"])
def test_missing_authentication_is_an_error(api, run, tmp_path, address):
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    for options in (["--check"], ["--kubeconfig", kubeconfig]):
        code, text = run(*options, web={"listen_address": address}, auth={})
        assert code == 2
        assert "auth.bearer_file is not set: anyone who can connect could restart jobs" in text


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({}, 0, "restarter.yaml: valid\n"),
        ({"policy": {"enabled": False}}, 0, "policy.enabled"),
        ({"policy": {}}, 0, "policy.dry_run is true"),
        ({"policy": {"dry_run": False}}, 0, "policy.namespaces"),
        ({"polcy": {}}, 2, 'did you mean "policy"'),
        ({"policy": {"cooldown": "soon"}}, 2, "policy.cooldown"),
        ({"auth": {"bearer_file": "none"}}, 1, "cannot read token file"),
        ({"checkpoint": {"on_timeout": "cry"}}, 2, "abort or restart"),
        ({"prometheus": {"bearer_file": "no-file"}}, 1, "cannot read token file"),
        ({"target": "nomad"}, 2, "target must be kubernetes, process or slurm"),
        ({"target": "slurm"}, 2, "state_file is required with target: slurm"),
        ({"target": "process", "state_file": "none/state.json"}, 1, "cannot write to the folder"),
        ({"target": "slurm", "state_file": "state.json", "slurm": {"start_after": "30s"}}, 0, "restarter.yaml: valid"),
        ({"target": "process", "state_file": "state.json"}, 0, "restarter.yaml: valid"),
        ({"prometheus": {"url": "prometheus:9090"}}, 2, "prometheus.url is not a server address"),
        ({"prometheus": {"url": "https://p", "ca_file": "none"}}, 1, "cannot use CA file"),
        ({"prometheus": {"url": "https://p", "bearer_file": "none"}}, 1, "cannot read token file"),
        ({"target": "process", "state_file": "."}, 1, "is a folder; name a file in it"),
        ({"web": {"listen_address": ":9"}, "metrics_web": {"listen_address": ":9"}}, 2, "choose two ports"),
    ],
)
def test_config_is_checked(run, changes, code, text):
    found, line = run("--check", **changes)
    assert found == code
    assert text in line


def test_missing_extra_fails_the_check(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightkube.config.client_adapter", None)
    monkeypatch.delitem(sys.modules, "gpufrag.restarter.kubernetes.client")
    monkeypatch.delattr("gpufrag.restarter.kubernetes.client")
    code, line = run("--check")
    assert code == 1
    assert "Kubernetes needs lightkube, which is not installed: pip install" in line


def test_missing_kubeconfig_is_one_line(run, tmp_path):
    code, line = run("--kubeconfig", tmp_path / "none")
    assert code == 2
    assert str(tmp_path / "none") in line
