"""A real cluster, by its API server. The only module that knows the client library.

The library finds the server, checks its certificate and brings the token, which it reads again from its file when the
server calls it outdated. Requests are spelled out here, so that what is sent can be read.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ...errors import Unavailable, UsageError
from ..errors import Away, Denied, NotFound
from . import bodies
from .answers import decoded, error_of
from .cluster import PHASE, Body, Event, GroupKind, Owner, Pod, Ref, group_of
from .kinds import COMMAND, EVENT, POD, RESOURCES, group_version
from .objects import owner_from, pod_from
from .steps import merged

try:
    import httpx2
    from lightkube.config.client_adapter import ConnectionParams
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig
    from lightkube.core.exceptions import ConfigError
    from lightkube.core.generic_client import BasicRequest, GenericSyncClient
except ModuleNotFoundError as missing:
    library = (missing.name or "a library").partition(".")[0]
    raise Unavailable(f"Kubernetes needs {library}, which is not installed: pip install 'gpufrag[restarter]'") from None

MERGE_PATCH = "application/merge-patch+json"
PAGE = 500
"""Objects of one list request."""
MAX_ANSWER = 64 << 20
"""Bytes; a page of pods is some 10 MiB at most."""
_NO_KUBECONFIG = (ConfigError, OSError, AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError)
"""What the library raises for a file that is not there, or is something else."""
NOTHING: Mapping[str, str] = {}
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def connect(kubeconfig: Path | None = None, context: str | None = None, timeout_s: float = 10.0) -> KubernetesCluster:
    """The cluster of a kubeconfig file; without one, the cluster that this runs in, or else $KUBECONFIG's.

    Raises UsageError where there is none. Nothing is sent yet.
    """
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        config = found.get(context)
        if config is None or config.user is None:
            raise ConfigError("its context names no user")
        return KubernetesCluster(config, timeout_s)
    except _NO_KUBECONFIG as error:
        told = " ".join(f"{error}".split()) if isinstance(error, (ConfigError, OSError)) else "it is no kubeconfig"
        where = kubeconfig or os.environ.get("KUBECONFIG") or "no cluster"
        raise UsageError(f"{where}: {told}; name a good file by --kubeconfig, or run in a pod") from error


class KubernetesCluster:
    """A Cluster. Each call takes `timeout_s` at most, or twice that where a token had to be renewed.

    `instance` is said in events; `clock` is in seconds and never goes back.
    """

    def __init__(
        self,
        config: SingleConfig,
        timeout_s: float = 10.0,
        trust_env: bool = True,
        instance: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parameters = ConnectionParams(timeout=httpx2.Timeout(timeout_s), trust_env=trust_env)
        self._client = GenericSyncClient(parameters, config)
        self._timeout_s, self._clock = timeout_s, clock
        self._instance = instance or socket.gethostname()

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def get_pod(self, namespace: str, name: str) -> Pod:
        return pod_from(self._call("GET", _path("v1", POD, namespace, name)))

    def get_owner(self, ref: Ref) -> Owner:
        owner = owner_from(self._call("GET", _path_of(ref)), ref.group_version, ref.kind)
        if ref.uid and owner.uid != ref.uid:
            raise NotFound(f"{ref} with uid {ref.uid} is gone: another has taken its name")
        return owner

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        sent = merged(body, {"metadata": {"uid": ref.uid}})
        if resource_version is not None:
            sent = merged(sent, {"metadata": {"resourceVersion": resource_version}})
        raw = self._call("PATCH", _path_of(ref), sent, MERGE_PATCH, dry_run=dry_run)
        return owner_from(raw, ref.group_version, ref.kind)

    def evict(self, pod: Pod, dry_run: bool = False) -> None:
        path = f"{_path('v1', POD, pod.namespace, pod.name)}/eviction"
        self._call("POST", path, bodies.eviction(pod), dry_run=dry_run)

    def create_event(self, event: Event) -> None:
        path = _path(group_version(EVENT), EVENT, event.regarding.namespace)
        self._call("POST", path, bodies.event(event, self._instance))

    def create_command(self, ref: Ref, action: str, name: str, dry_run: bool = False) -> None:
        path = _path(group_version(COMMAND), COMMAND, ref.namespace)
        self._call("POST", path, bodies.command(ref, action, name), dry_run=dry_run)

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        path = _path("v1", POD, namespace)
        return tuple(pod_from(raw) for raw in self._list(path, {"labelSelector": selector}))

    def list_marked(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        return tuple(owner for owner in self.list_all(kind, namespace) if PHASE in owner.annotations)

    def list_all(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        """All of a kind, pods too; empty where the server has no such kind."""
        try:
            version = self._served_version(kind) if kind.group else group_version(kind)
            found = self._list(_path(version, kind, namespace))
        except NotFound:
            return ()
        return tuple(owner_from(raw, version, kind.kind) for raw in found)

    def can_i(self, verb: str, kind: GroupKind, namespace: str, subresource: str = "", name: str = "") -> bool:
        review = bodies.access_review(verb, kind, namespace, subresource, name)
        answer = self._call("POST", "apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer.get("status", {}).get("allowed"))

    def whoami(self) -> str:
        answer = self._call("POST", "apis/authentication.k8s.io/v1/selfsubjectreviews", bodies.subject_review())
        return str(answer.get("status", {}).get("userInfo", {}).get("username", ""))

    def _served_version(self, kind: GroupKind) -> str:
        """Ours, unless the server has others only. Raises NotFound where it has no such group."""
        ours = group_version(kind)
        try:
            group = self._call("GET", f"apis/{kind.group}")
        except Denied:  # most may ask, but not everywhere
            return ours
        versions = [one["groupVersion"] for one in group.get("versions", ())]
        return ours if ours in versions else str(group.get("preferredVersion", {}).get("groupVersion", ours))

    def _list(self, path: str, selection: Mapping[str, str] = NOTHING) -> list[Any]:
        items: list[Any] = []
        parameters = {**selection, "limit": str(PAGE)}
        while True:
            page = self._call("GET", path, parameters=parameters)
            items += page.get("items") or ()
            more = page.get("metadata", {}).get("continue")
            if not more:
                return items
            parameters["continue"] = more

    def _call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        content_type: str = "application/json",
        dry_run: bool = False,
        parameters: Mapping[str, str] = NOTHING,
    ) -> Any:
        """The decoded answer. Raises ClusterError."""
        query = dict(parameters)
        if body is not None:
            query["fieldValidation"] = "Strict"  # a field that the server does not know would be lost in silence
        if dry_run:
            query["dryRun"] = "All"
        what = f"{method} {path}"
        headers = {"Content-Type": content_type} if body is not None else None
        status, answered, content = self._exchange(BasicRequest(method, path, None, query, body, headers), what)
        if not 200 <= status < 300:
            raise error_of(status, answered, content, what)
        return decoded(content, what)

    def _exchange(self, request: BasicRequest, what: str) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body. The client bounds each wait for bytes; here, all of them together."""
        deadline = self._clock() + self._timeout_s
        try:
            response = self._client.send(self._client.build_adapter_request(request), stream=True)
            try:
                content = b""
                for chunk in response.iter_bytes():
                    content += chunk
                    if self._clock() > deadline or len(content) > MAX_ANSWER:
                        raise Away(f"{what}: the answer has no end: not read beyond {self._timeout_s:g} s")
            finally:
                response.close()
        except httpx2.HTTPError as error:
            raise Away(f"{what}: no answer: {error or type(error).__name__}; it is worth another try") from error
        except (ConfigError, OSError) as error:
            raise Denied(f"{what}: the credentials cannot be read: {error}; look at their file") from error
        return response.status_code, response.headers, content


def _path_of(ref: Ref) -> str:
    return _path(ref.group_version, ref.group_kind, ref.namespace, ref.name)


def _path(version: str, kind: GroupKind, namespace: str, name: str | None = None) -> str:
    """Names may come from an alert: one that no object can have is not there, and never reaches a URL."""
    for part in (namespace, name):
        if part is not None and not NAME.fullmatch(part):
            raise NotFound(f"{kind} {part!r:.80}: nothing can have that name")
    root = f"apis/{version}" if group_of(version) else f"api/{version}"
    path = f"{root}/namespaces/{namespace}/{RESOURCES[kind].plural}"
    return path if name is None else f"{path}/{name}"
