"""An API server to try things on, whichever it is, by an administrator's hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.generic_client import BasicRequest, GenericSyncClient

from gpufrag.restarter.kubernetes.client import KubernetesCluster

IMAGE = os.environ.get("GPUFRAG_TEST_IMAGE", "busybox")
MERGE = "application/merge-patch+json"
Limit = Callable[["Backend", list[dict[str, Any]]], SingleConfig]


class Reply(NamedTuple):
    """What a server answered, as it came."""

    code: int
    headers: Any
    body: Any
    """None where it is no JSON."""


class Backend:
    """An API server with a namespace to try things in, by an administrator's hand."""

    def __init__(self, config: SingleConfig, namespace: str, limited: Limit, pause_s: float) -> None:
        self._open: list[Any] = []
        self._client = GenericSyncClient(ConnectionParams(timeout=10.0, trust_env=pause_s > 0), config)
        self._config, self._pause_s, self._limited = config, pause_s, limited
        self.namespace = namespace
        self.cluster = self.connect(config)

    def close(self) -> None:
        for one in [*self._open, self._client]:
            one.close()

    def connect(self, config: SingleConfig | None) -> KubernetesCluster:
        assert config is not None
        cluster = KubernetesCluster(config, trust_env=self._pause_s > 0)
        self._open.append(cluster)
        return cluster

    def with_rules(self, rules: list[dict[str, Any]]) -> KubernetesCluster:
        """Somebody who may do just this, in the namespace."""
        return self.connect(self._limited(self, rules))

    def with_token(self, token: str) -> KubernetesCluster:
        one = KubeConfig.from_one(cluster=self._config.cluster, user=User(token=token), fname=self._config.fname)
        return self.connect(one.get())

    def ask(self, method: str, path: str, body: Any = None, content_type: str = MERGE, **query: str) -> Reply:
        """`path`: below the namespace where it starts with a group and version, as `apps/v1 deployments/x`."""
        headers = {"Content-Type": content_type if method == "PATCH" else "application/json"}
        request = BasicRequest(method, self._url(path), None, query, body, headers)
        response = self._client.send(self._client.build_adapter_request(request))
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
        """What it returns, once that is anything."""
        deadline = time.monotonic() + patience_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(self._pause_s)
        return found

    def job(self, name: str, **spec: Any) -> dict[str, Any]:
        """A Job of two ranks that runs: the object as it then is."""
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
