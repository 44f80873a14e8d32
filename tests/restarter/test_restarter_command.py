"""`gpufrag restarter` as a process, on an API server that is a fake: from a call of the webhook to a restarted job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import gpufrag
from gpufrag.cli import main
from restarter.fake_api import manifests
from restarter.fake_api.server import FakeApi, fake_api
from restarter.webhook_bodies import ALERT, body

PATIENCE_S = 20.0
TOKEN = "an-honest-token-of-some-length"
CONFIG: dict[str, Any] = {
    "web": {"listen_address": "127.0.0.1:0"},
    "metrics_web": {"listen_address": "127.0.0.1:0"},
    "auth": {"bearer_file": "token"},
    "policy": {"namespaces": ["ml"], "dry_run": False},
    "restart": {"poll": "50ms", "retry": "50ms"},
    "circuit": {"namespace": "ml"},
}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        job = manifests.job()
        job["metadata"]["annotations"] = {"gpufrag.dev/restart": "true"}
        one.world.apply(job)
        one.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifests.meta("gpufrag-restarter")})
        yield one


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "token").write_text(TOKEN)
    path = folder / "restarter.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return path


class Process:
    """One `gpufrag restarter`; its two logs are files."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log, self._audit = folder / "log", folder / "audit"
        environment = {**os.environ, "PYTHONPATH": str(Path(gpufrag.__file__).parents[1]), "NO_PROXY": "127.0.0.1"}
        with self._log.open("w") as log, self._audit.open("w") as audit:
            command = [sys.executable, "-m", "gpufrag", "restarter", *arguments]
            self._process = subprocess.Popen(command, stdout=audit, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def outcomes(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self._audit.read_text().splitlines()]

    def url(self, path: str) -> str:
        """The port of the webhook, or of the metrics where the path is theirs."""
        what = "metrics" if path.startswith(("/metrics", "/-/")) else "alerts"
        (line,) = [line for line in self.log.splitlines() if "msg=listening" in line and f"for={what}" in line]
        return f"http://{line.partition('address=')[2].split()[0]}{path}"

    def eventually(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)


@pytest.fixture
def start(api: FakeApi, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts the restarter on the fake cluster; keyword arguments are changes of its config."""
    started: list[Process] = []

    def run(**changes: Any) -> Process:
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
        config = write_config(tmp_path, **changes)
        started.append(Process(tmp_path, "--config", str(config), "--kubeconfig", str(kubeconfig)))
        started[-1].eventually(lambda: started[-1].log.count("msg=listening") == 2)
        return started[-1]

    yield run
    for process in started:
        process.kill()


def get(process: Process, path: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return httpx.get(process.url(path), headers=headers, trust_env=False, timeout=PATIENCE_S)


def send(process: Process, pod: str) -> int:
    content = body(alerts=[{**ALERT, "labels": {**ALERT["labels"], "pod": pod}}])
    headers = {"authorization": f"Bearer {TOKEN}"}
    url = process.url("/v1/alerts")
    return httpx.post(url, content=content, headers=headers, trust_env=False, timeout=PATIENCE_S).status_code


def pod_of(api: FakeApi) -> str:
    """Any that runs, when the fake's controllers have made it."""
    config = api.config()
    answer = httpx.get(f"{api.url}/api/v1/namespaces/ml/pods", headers=_as(config), trust_env=False)
    return str(answer.json()["items"][0]["metadata"]["name"])


def _as(config: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {config.user.token}"}


def test_from_an_alert_to_a_restarted_job(api: FakeApi, start: Any) -> None:
    process = start()
    process.eventually(lambda: get(process, "/-/ready").status_code == 200)
    assert send(process, pod_of(api)) == 202
    process.eventually(lambda: process.outcomes[-1:] == ["restarted"])
    patches = [json.loads(one.body)["spec"] for one in api.sent("PATCH", "/jobs/") if b'"spec"' in one.body]
    assert patches == [{"suspend": True}, {"suspend": False}]
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
    first.eventually(lambda: any(b'"suspend":true' in one.body.replace(b" ", b"") for one in api.sent("PATCH")))
    first.kill()
    second = start()
    second.eventually(lambda: second.outcomes == ["resumed", "restarted"])


def test_an_open_door_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, web={"listen_address": ":0"}, auth={})
    assert main(["restarter", "--check", "--config", str(config)]) == 2
    assert "anybody who can connect could restart jobs; set auth.bearer_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({}, 0, "restarter.yaml: good"),
        ({"polcy": {}}, 2, "did you mean policy"),
        ({"policy": {"cool_down": "soon"}}, 2, "policy.cool_down"),
        ({"auth": {"bearer_file": "none"}}, 1, "none: No such file"),
        ({"checkpoint": {"on_timeout": "cry"}}, 2, "abort or restart"),
        ({"prometheus": {"url": "prometheus:9090"}}, 2, "prometheus.url is no address"),
        ({"prometheus": {"url": "https://p", "ca_file": "none"}}, 1, "prometheus.ca_file"),
    ],
)
def test_a_config_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int, told: str
) -> None:
    assert main(["restarter", "--check", "--config", str(write_config(tmp_path, **changes))]) == code
    shown = capsys.readouterr()
    assert told in (shown.err if code else shown.out)
    assert (shown.out + shown.err).count("\n") == 1


def test_no_cluster_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = str(tmp_path / "none")
    assert main(["restarter", "--config", str(write_config(tmp_path)), "--kubeconfig", kubeconfig]) == 2
    assert kubeconfig in capsys.readouterr().err
