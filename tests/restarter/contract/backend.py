"""An API server under test, real or fake, used as an administrator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.generic_client import BasicRequest, GenericSyncClient

from gpufrag.restarter.kubernetes.client import KubernetesClient

IMAGE = os.environ.get("GPUFRAG_TEST_IMAGE", "busybox")
MERGE = "application/merge-patch+json"
Limit = Callable[["Backend", list[dict[str, Any]]], SingleConfig]


class Reply(NamedTuple):
    """A server's raw answer."""

    code: int
    headers: Any
    body: Any
    """None if it is not JSON."""


class Backend:
    """An API server with a namespace for the tests."""

    def __init__(self, config: SingleConfig, namespace: str, limited: Limit, pause_s: float) -> None:
        self._open: list[Any] = []
        self._admin = GenericSyncClient(ConnectionParams(timeout=10.0, trust_env=pause_s > 0), config)
        self._config, self._pause_s, self._limited = config, pause_s, limited
        self.namespace = namespace
        self.client = self.connect(config)

    def close(self) -> None:
        for one in [*self._open, self._admin]:
            one.close()

    def connect(self, config: SingleConfig | None) -> KubernetesClient:
        assert config is not None
        client = KubernetesClient(config, trust_env=self._pause_s > 0)
        self._open.append(client)
        return client

    def with_rules(self, rules: list[dict[str, Any]]) -> KubernetesClient:
        """Return a client with these permissions in the namespace."""
        return self.connect(self._limited(self, rules))

    def with_token(self, token: str) -> KubernetesClient:
        one = KubeConfig.from_one(cluster=self._config.cluster, user=User(token=token), fname=self._config.fname)
        return self.connect(one.get())

    def ask(self, method: str, path: str, body: Any = None, content_type: str = MERGE, **query: str) -> Reply:
        """`path` is below the namespace if it starts with a group and version: `apps/v1 deployments/x`."""
        headers = {"Content-Type": content_type if method == "PATCH" else "application/json"}
        request = BasicRequest(method, self._url(path), None, query, body, headers)
        response = self._admin.send(self._admin.build_adapter_request(request))
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return Reply(response.status_code, response.headers, response.json() if is_json else None)

    def _url(self, path: str) -> str:
        version, space, rest = path.partition(" ")
        root = "apis" if "/" in version else "api"
        return f"{root}/{version}/namespaces/{self.namespace}/{rest}" if space else path

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = self.ask("POST", path, body)
        assert reply.code == 201, reply.body
        made: dict[str, Any] = reply.body
        return made

    def eventually(self, condition: Callable[[], Any], patience_s: float = 120.0) -> Any:
        """Return what `condition` returns once it is true."""
        deadline = time.monotonic() + patience_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(self._pause_s)
        return found

    def job(self, name: str, **spec: Any) -> dict[str, Any]:
        """Create a Job of two ranks and return it once it runs."""
        self.create("batch/v1 jobs", {"metadata": {"name": name}, "spec": {**JOB, **spec}})
        return self.eventually(lambda: self.running(name))

    def running(self, name: str) -> dict[str, Any] | None:
        body: dict[str, Any] = self.ask("GET", f"batch/v1 jobs/{name}").body
        return body if body.get("status", {}).get("ready") == body["spec"]["parallelism"] else None

    def pods(self, job: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "v1 pods", labelSelector=f"job-name={job}").body["items"]
        return found


CONTAINER = {"name": "main", "image": IMAGE, "command": ["sh", "-c", "trap 'exit 1' TERM; sleep 3600 & wait"]}
JOB = {
    "parallelism": 2,
    "completions": 2,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}},
}
