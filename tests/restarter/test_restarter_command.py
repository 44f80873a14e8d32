"""`gpufrag restarter` as a process: from a webhook call to a restarted job, and the check of its config."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufrag.cli import main
from restarter.fake_api.server import FakeApi
from restarter.restarter_process import Process, api_with_a_job, get, pod_of, send, suspensions, write_config


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with api_with_a_job() as one:
        yield one


@pytest.fixture
def start(api: FakeApi, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start the restarter on the fake API server; keyword arguments change its config."""
    started: list[Process] = []

    def run(**changes: Any) -> Process:
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
        config = write_config(tmp_path, **changes)
        started.append(Process(tmp_path, "--config", str(config), "--kubeconfig", str(kubeconfig)))
        started[-1].wait_until_it_listens()
        return started[-1]

    yield run
    for process in started:
        process.kill()


def test_webhook_call_restarts_a_job(api: FakeApi, start: Any) -> None:
    process = start()
    process.eventually(lambda: get(process, "/-/ready").status_code == 200)
    assert send(process, pod_of(api)) == 202
    process.eventually(lambda: process.outcomes[-1:] == ["restarted"])
    assert suspensions(api) == [True, False]
    assert 'actions_total{kind="Job.batch",result="restarted"} 1.0' in get(process, "/metrics").text
    assert [one["outcome"] for one in get(process, "/v1/decisions").json()] == ["restarted", "started"]
    assert process.end() == 0


def test_dry_run_stores_nothing(api: FakeApi, start: Any) -> None:
    process = start(policy={"namespaces": ["ml"]})
    assert send(process, pod_of(api)) == 202
    process.eventually(lambda: process.outcomes == ["would-restart"])
    assert {one.query.get("dryRun") for one in api.sent("PATCH")} == {"All"}


def test_job_of_a_killed_restarter_is_resumed(api: FakeApi, start: Any) -> None:
    first = start()
    api.world.grace_ticks = 10**9
    assert send(first, pod_of(api)) == 202
    first.eventually(lambda: suspensions(api) == [True])
    first.kill()
    api.world.grace_ticks = 2
    second = start()
    second.eventually(lambda: second.outcomes == ["taken-over", "restarted"])
    assert suspensions(api) == [True, False]


@pytest.mark.parametrize("address", [":0", "127.0.0.1:0"])
def test_missing_authentication_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    config = write_config(tmp_path, web={"listen_address": address}, auth={})
    for options in (["--check"], ["--kubeconfig", str(tmp_path / "none")]):
        assert main(["restarter", *options, "--config", str(config)]) == 2
    assert "auth.bearer_file is not set: anyone who can connect could restart jobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({}, 0, "restarter.yaml: valid"),
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
def test_config_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int, text: str
) -> None:
    assert main(["restarter", "--check", "--config", str(write_config(tmp_path, **changes))]) == code
    shown = capsys.readouterr()
    assert text in (shown.err if code else shown.out)
    assert (shown.out + shown.err).count("\n") == 1


def test_check_shows_why_nothing_is_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    causes = {
        "policy.enabled": {"enabled": False},
        "policy.dry_run is true": {},
        "policy.namespaces": {"dry_run": False},
    }
    for why, policy in causes.items():
        assert main(["restarter", "--check", "--config", str(write_config(tmp_path, policy=policy))]) == 0
        assert why in capsys.readouterr().out
    assert main(["restarter", "--check", "--config", str(write_config(tmp_path))]) == 0
    assert capsys.readouterr().out.endswith(": valid\n")


def test_missing_extra_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightkube.config.client_adapter", None)
    monkeypatch.delitem(sys.modules, "gpufrag.restarter.kubernetes.client")
    monkeypatch.delattr("gpufrag.restarter.kubernetes.client")
    assert main(["restarter", "--check", "--config", str(write_config(tmp_path))]) == 1
    assert "Kubernetes needs lightkube, which is not installed: pip install" in capsys.readouterr().err


def test_missing_kubeconfig_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = str(tmp_path / "none")
    assert main(["restarter", "--config", str(write_config(tmp_path)), "--kubeconfig", kubeconfig]) == 2
    assert kubeconfig in capsys.readouterr().err
