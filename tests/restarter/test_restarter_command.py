"""`gpufrag restarter` as a process, on an API server that is a fake: from a call of the webhook to a restarted job."""

from __future__ import annotations

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
    """Starts the restarter on the fake cluster; keyword arguments are changes of its config."""
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


def test_from_an_alert_to_a_restarted_job(api: FakeApi, start: Any) -> None:
    process = start()
    process.eventually(lambda: get(process, "/-/ready").status_code == 200)
    assert send(process, pod_of(api)) == 202
    process.eventually(lambda: process.outcomes[-1:] == ["restarted"])
    assert suspensions(api) == [True, False]
    assert 'actions_total{kind="Job.batch",result="restarted"} 1.0' in get(process, "/metrics").text
    assert [one["outcome"] for one in get(process, "/v1/decisions").json()] == ["restarted", "started"]
    assert process.end() == 0


def test_a_dry_run_stores_nothing(api: FakeApi, start: Any) -> None:
    process = start(policy={"namespaces": ["ml"]})
    assert send(process, pod_of(api)) == 202
    process.eventually(lambda: process.outcomes == ["would-restart"])
    assert {one.query.get("dryRun") for one in api.sent("PATCH")} == {"All"}


def test_a_killed_receiver_s_job_is_resumed_by_the_next(api: FakeApi, start: Any) -> None:
    first = start(restart={"poll": "1h", "retry": "50ms"})  # it suspends, and looks again in an hour
    assert send(first, pod_of(api)) == 202
    first.eventually(lambda: suspensions(api) == [True])
    first.kill()
    second = start()
    second.eventually(lambda: second.outcomes == ["resumed", "restarted"])
    assert suspensions(api) == [True, False]


def test_an_open_door_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, web={"listen_address": ":0"}, auth={})
    assert main(["restarter", "--check", "--config", str(config)]) == 2
    assert "anybody who can connect could restart jobs; set auth.bearer_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({}, 0, "restarter.yaml: good"),
        ({"polcy": {}}, 2, 'did you mean "policy"'),
        ({"policy": {"cool_down": "soon"}}, 2, "policy.cool_down"),
        ({"auth": {"bearer_file": "none"}}, 1, "none: No such file"),
        ({"checkpoint": {"on_timeout": "cry"}}, 2, "abort or restart"),
        ({"prometheus": {"bearer_file": "no-file"}}, 1, "prometheus.bearer_file"),
        ({"target": "nomad"}, 2, "target must be kubernetes, process or slurm"),
        ({"target": "slurm"}, 2, "target slurm needs state_file"),
        ({"target": "process", "state_file": "none/state.json"}, 1, "not a folder that can be written to"),
        ({"target": "slurm", "state_file": "state.json", "slurm": {"start_after": "30s"}}, 0, "restarter.yaml: good"),
        ({"target": "process", "state_file": "state.json"}, 0, "restarter.yaml: good"),
        ({"prometheus": {"url": "prometheus:9090"}}, 2, "prometheus.url is not a server address"),
        ({"prometheus": {"url": "https://p", "ca_file": "none"}}, 1, "prometheus.ca_file"),
        ({"prometheus": {"url": "https://p", "bearer_file": "none"}}, 1, "prometheus.bearer_file"),
        ({"target": "process", "state_file": "."}, 1, "a folder; name a file in it"),
        ({"web": {"listen_address": ":9"}, "metrics_web": {"listen_address": ":9"}}, 2, "choose two ports"),
    ],
)
def test_a_config_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int, told: str
) -> None:
    assert main(["restarter", "--check", "--config", str(write_config(tmp_path, **changes))]) == code
    shown = capsys.readouterr()
    assert told in (shown.err if code else shown.out)
    assert (shown.out + shown.err).count("\n") == 1


def test_a_check_says_that_nothing_would_be_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "empty.yaml").touch()
    assert main(["restarter", "--check", "--config", str(path)]) == 0
    assert "restarts nothing: policy.dry_run is true" in capsys.readouterr().out
    for policy, why in (({"enabled": False}, "policy.enabled"), ({"dry_run": False}, "policy.namespaces is empty")):
        assert main(["restarter", "--check", "--config", str(write_config(tmp_path, policy=policy))]) == 0
        assert why in capsys.readouterr().out
    assert main(["restarter", "--check", "--config", str(write_config(tmp_path))]) == 0
    assert capsys.readouterr().out.endswith(": good\n")


def test_no_cluster_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = str(tmp_path / "none")
    assert main(["restarter", "--config", str(write_config(tmp_path)), "--kubeconfig", kubeconfig]) == 2
    assert kubeconfig in capsys.readouterr().err
