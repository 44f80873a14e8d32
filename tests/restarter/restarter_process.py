"""`gpufrag restarter` as a process, on the fake API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

import gpufrag
from restarter.fake_api import manifests
from restarter.fake_api.server import FakeApi, fake_api
from restarter.webhook_bodies import ALERT, body

PATIENCE_S = 90.0
TOKEN = "an-honest-token-of-some-length"
BEARER = {"authorization": f"Bearer {TOKEN}"}
CONFIG: dict[str, Any] = {
    "web": {"listen_address": "127.0.0.1:0"},
    "metrics_web": {"listen_address": "127.0.0.1:0"},
    "auth": {"bearer_file": "token"},
    "policy": {"namespaces": ["ml"], "dry_run": False},
    "circuit": {"namespace": "ml"},
}


@contextmanager
def api_with_a_job(**spec: Any) -> Iterator[FakeApi]:
    """With a job that has opted in, and the ConfigMap of the circuit breaker."""
    with fake_api() as one:
        one.world.apply(manifests.job(**spec))
        one.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifests.meta("gpufrag-restarter")})
        yield one


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "token").write_text(TOKEN)
    path = folder / "restarter.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return path


class Process:
    """One `gpufrag restarter`, which logs to files."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._log, self._audit = folder / "log", folder / "audit"
        environment = {**os.environ, "PYTHONPATH": str(Path(gpufrag.__file__).parents[1]), "NO_PROXY": "127.0.0.1"}
        with self._log.open("w") as log, self._audit.open("w") as audit:
            command = [sys.executable, "-m", "gpufrag", "restarter", *map(str, arguments)]
            self._process = subprocess.Popen(command, stdout=audit, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def outcomes(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self._audit.read_text().splitlines()]

    def url(self, path: str) -> str:
        """Return the URL of a path on its port."""
        what = "metrics" if path.startswith(("/metrics", "/-/")) else "alerts"
        (line,) = [line for line in self.log.splitlines() if "msg=listening" in line and f"for={what}" in line]
        return f"http://{line.partition('address=')[2].split()[0]}{path}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url(path), headers=BEARER, trust_env=False, timeout=PATIENCE_S)

    def send(self, **labels: str) -> None:
        """Send an alert with these labels."""
        content = body(alerts=[{**ALERT, "labels": {**ALERT["labels"], **labels}}])
        url = self.url("/v1/alerts")
        answer = httpx.post(url, content=content, headers=BEARER, trust_env=False, timeout=PATIENCE_S)
        assert answer.status_code == 202

    def count(self, metric: str) -> float:
        """Return the value of a counter with these labels, for example `calls_total{answer="accepted"}`."""
        (line,) = [line for line in self.get("/metrics").text.splitlines() if f"_{metric}" in line]
        return float(line.split()[-1])

    def eventually(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def wait_until_it_listens(self) -> None:
        self.eventually(lambda: self.log.count("msg=listening") == 2)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)


def pod_of(api: FakeApi) -> str:
    """Return the name of a running pod."""
    return str(api.world.pods()[0]["metadata"]["name"])


def suspensions(api: FakeApi) -> list[bool]:
    """Return the values of spec.suspend that were sent."""
    patches = [json.loads(one.body) for one in api.sent("PATCH", "/jobs/") if not one.dry_run]
    return [patch["spec"]["suspend"] for patch in patches if "spec" in patch]
