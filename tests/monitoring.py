"""A real Prometheus, a real Alertmanager and a webhook receiver as context managers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml

T = TypeVar("T")
PATIENCE = 150.0  # seconds; the machine may be busy, and each wait ends with the fact


def executable(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (Debian: {package})")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Return the first true result of `look`; HTTP and lookup errors mean not yet."""
    deadline = time.monotonic() + patience
    last: object = None
    while time.monotonic() < deadline:
        try:
            if result := look():
                return result
            last = result
        except (httpx.HTTPError, LookupError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"not within {patience:.0f} s: {what}; last seen: {last!r}")


@contextmanager
def process(
    command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the context ends; its output is in `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield child
    finally:
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def python(*arguments: object) -> list[object]:
    return [sys.executable, *arguments]


@dataclass(frozen=True)
class Prometheus:
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, trust_env=False, timeout=10)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # it is starting
            answer.raise_for_status()
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        result: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return result

    def values(self, expr: str) -> list[float]:
        return [float(series["value"][1]) for series in self.query(expr)]


@contextmanager
def prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Run Prometheus with `config`; relative paths start at `folder`."""
    path, port = folder / "prometheus.yml", free_port()
    path.write_text(yaml.safe_dump(dict(config)))
    command = [
        executable("prometheus", "prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with process(command, folder / "prometheus.log"):
        started = Prometheus(f"http://127.0.0.1:{port}")
        eventually(lambda: started.get("status/buildinfo"), f"Prometheus is up (see {folder / 'prometheus.log'})")
        yield started


@contextmanager
def alertmanager(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Run Alertmanager; yield its host:port."""
    path, port = folder / "alertmanager.yml", free_port()
    path.write_text(yaml.safe_dump(dict(config)))
    command = [
        executable("prometheus-alertmanager", "prometheus-alertmanager"),
        f"--config.file={path}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    with process(command, folder / "alertmanager.log"):
        ready = f"http://127.0.0.1:{port}/-/ready"
        eventually(lambda: httpx.get(ready, trust_env=False).is_success, "Alertmanager is up")
        yield f"127.0.0.1:{port}"


@dataclass
class Receiver:
    """Receives Alertmanager's webhooks; `calls` has the bodies by path."""

    url: str
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)

    def alerts(self, path: str, status: str) -> list[dict[str, Any]]:
        """Return the alerts of that status from all calls on `path`."""
        groups = list(self.calls.get(path, []))
        return [alert for group in groups for alert in group["alerts"] if alert["status"] == status]


@contextmanager
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            there.tokens.add(self.headers.get("authorization"))
            there.calls.setdefault(self.path, []).append(body)
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        there = Receiver(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield there
        finally:
            server.shutdown()
