"""The API server. The only module that imports the Kubernetes client library.

The library finds the server, checks its certificate and sends the token, which it reads again when the server rejects
it. Requests are written out here, so a reader sees what is sent. The server is not trusted: answers are bounded.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from ...errors import Unavailable, UsageError
from ..backend import Away, BackendError, Conflict, Denied, Invalid, NotFound, TooMany
from ..record import PHASE
from .objects import (
    COMMAND,
    EVENT,
    EVICTION,
    POD,
    RESOURCES,
    Body,
    GroupKind,
    Owner,
    Pod,
    Ref,
    group_of,
    group_version,
    merged,
    owner_from,
    pod_from,
)

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
PAGE = 200
"""Objects per list request."""
MAX_PAGES = 250
MAX_ANSWER = 16 << 20
"""Bytes of one answer: a page of large pods takes about 4 MiB."""
MAX_TEXT = 256
"""Characters kept of a message from the server."""
MAX_NOTE, MAX_REASON = 1024, 128
"""Bytes of an Event's fields; the server rejects more."""
CONTROLLER = "gpufrag.dev/restarter"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NO_KUBECONFIG = (ConfigError, OSError, AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError)
"""What the library raises for a missing or invalid file."""
_NOTHING: Mapping[str, str] = {}


def connect(kubeconfig: Path | None = None, context: str | None = None, timeout_s: float = 10.0) -> KubernetesClient:
    """Return the cluster of a kubeconfig; without one, the cluster of this pod, or the one in $KUBECONFIG.

    Sends nothing. Raises UsageError if there is none.
    """
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        config = found.get(context)
        if config is None or config.user is None:
            raise ConfigError("its context names no user")
        return KubernetesClient(config, timeout_s)
    except _NO_KUBECONFIG as error:
        cause = " ".join(f"{error}".split()) if isinstance(error, (ConfigError, OSError)) else "not a kubeconfig"
        if kubeconfig is not None and not kubeconfig.exists():
            cause = "no such file"
        where = kubeconfig or os.environ.get("KUBECONFIG") or "no cluster"
        raise UsageError(f"{where}: {cause}; name a valid file with --kubeconfig, or run in a pod") from error


@dataclass(frozen=True)
class Event:
    """What `kubectl describe` shows. `reason` is CamelCase, `note` a sentence."""

    regarding: Ref
    reason: str
    note: str
    at_s: float
    """Unix time."""
    warning: bool = False
    related: Ref | None = None


class KubernetesClient:
    """Requests to one API server; see `permissions` for the permissions they need.

    Each call raises BackendError or returns the server's answer, within `timeout_s`, or twice that after a token was
    renewed. `clock` is monotonic.
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
        """Raises NotFound also if the object has another uid."""
        owner = owner_from(self._call("GET", _path_of(ref)), ref.group_version, ref.kind)
        if ref.uid and owner.uid != ref.uid:
            raise NotFound(f"{ref} with uid {ref.uid} no longer exists: another object has its name")
        return owner

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        """Merge `body` into the object and return it.

        Raises Conflict unless the object still has `ref.uid` and, unless None, `resource_version`. Controllers write
        their status into the same object, so a conflict does not imply another restarter.
        """
        sent = merged(body, {"metadata": {"uid": ref.uid}})
        if resource_version is not None:
            sent = merged(sent, {"metadata": {"resourceVersion": resource_version}})
        raw = self._call("PATCH", _path_of(ref), sent, MERGE_PATCH, dry_run=dry_run)
        return owner_from(raw, ref.group_version, ref.kind)

    def evict(self, pod: Pod, dry_run: bool = False) -> None:
        """Raises Conflict if another pod has the name, TooMany if a disruption budget forbids the eviction now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": EVICTION.kind,
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        self._call("POST", f"{_path('v1', POD, pod.namespace, pod.name)}/eviction", body, dry_run=dry_run)

    def create_event(self, event: Event) -> None:
        body = {
            "apiVersion": group_version(EVENT),
            "kind": EVENT.kind,
            "metadata": {"generateName": "gpufrag-", "namespace": event.regarding.namespace},
            "eventTime": datetime.fromtimestamp(event.at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": cut(self._instance, MAX_REASON),
            "action": "Restart",
            "reason": cut(event.reason, MAX_REASON),
            "type": "Warning" if event.warning else "Normal",
            "note": cut(event.note, MAX_NOTE),
            "regarding": _object_reference(event.regarding),
            **({"related": _object_reference(event.related)} if event.related else {}),
        }
        self._call("POST", _path(group_version(EVENT), EVENT, event.regarding.namespace), body)

    def create_command(self, job: Ref, action: str, name: str, dry_run: bool = False) -> None:
        """Order Volcano to do `action` to its Job. Raises Conflict while a command of this name exists.

        The reference does not block the owner's deletion, which would need a permission on finalizers.
        """
        reference = {
            "apiVersion": job.group_version,
            "kind": job.kind,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
        }
        body = {
            "apiVersion": group_version(COMMAND),
            "kind": COMMAND.kind,
            "metadata": {"name": name, "namespace": job.namespace, "ownerReferences": [reference]},
            "target": reference,
            "action": action,
        }
        self._call("POST", _path(group_version(COMMAND), COMMAND, job.namespace), body, dry_run=dry_run)

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        """Labels prove nothing: see `owners.resolve` for the owner of a pod."""
        path = _path("v1", POD, namespace)
        return tuple(pod_from(raw) for raw in self._list(path, {"labelSelector": selector}))

    def list_marked(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        """Return the objects of a kind with a restart phase; empty if the server has no such kind."""
        return tuple(owner for owner in self._all(kind, namespace) if PHASE in owner.annotations)

    def list_all(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        """Return all objects of a kind, pods too; empty if the server has no such kind."""
        return tuple(self._all(kind, namespace))

    def can_i(self, verb: str, kind: GroupKind, namespace: str, subresource: str = "", name: str = "") -> bool:
        attributes = {"verb": verb, "group": kind.group, "resource": RESOURCES[kind].plural, "namespace": namespace}
        attributes |= {key: value for key, value in (("subresource", subresource), ("name", name)) if value}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._call("POST", "apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer.get("status", {}).get("allowed"))

    def whoami(self) -> str:
        """Return the user name of these credentials."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
        answer = self._call("POST", "apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        return str(answer.get("status", {}).get("userInfo", {}).get("username", ""))

    def _all(self, kind: GroupKind, namespace: str) -> Iterator[Owner]:
        try:
            version = self._served_version(kind) if kind.group else group_version(kind)
            for raw in self._list(_path(version, kind, namespace)):
                yield owner_from(raw, version, kind.kind)
        except NotFound:
            return

    def _served_version(self, kind: GroupKind) -> str:
        """Return our version unless the server only has others. Raises NotFound if it does not have the group."""
        ours = group_version(kind)
        try:
            group = self._call("GET", f"apis/{kind.group}")
        except Denied:  # discovery is restricted on some clusters
            return ours
        versions = [one["groupVersion"] for one in group.get("versions", ())]
        return ours if ours in versions else str(group.get("preferredVersion", {}).get("groupVersion", ours))

    def _list(self, path: str, selection: Mapping[str, str] = _NOTHING) -> Iterator[Any]:
        parameters = {**selection, "limit": str(PAGE)}
        for _ in range(MAX_PAGES):
            page = self._call("GET", path, parameters=parameters)
            yield from page.get("items") or ()
            more = page.get("metadata", {}).get("continue")
            if not more:
                return
            parameters["continue"] = more
        raise Away(f"GET {path}: the list has more than {MAX_PAGES} pages of {PAGE}")

    def _call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        content_type: str = "application/json",
        dry_run: bool = False,
        parameters: Mapping[str, str] = _NOTHING,
    ) -> Any:
        """Return the decoded answer."""
        query = dict(parameters)
        headers = {"Accept-Encoding": "identity"}  # a compressed answer could be far larger than it looks
        if body is not None:
            query["fieldValidation"] = "Strict"  # otherwise the server drops unknown fields silently
            headers["Content-Type"] = content_type
        if dry_run:
            query["dryRun"] = "All"
        what = f"{method} {path}"
        status, answered, content = self._exchange(BasicRequest(method, path, None, query, body, headers), what)
        if not 200 <= status < 300:
            raise error_of(status, answered, content, what)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise Away(f"{what}: the answer is not JSON: check the API server's address") from None

    def _exchange(self, request: BasicRequest, what: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body. The library bounds the wait for each part, not for all of them."""
        deadline = self._clock() + self._timeout_s
        try:
            response = self._client.send(self._client.build_adapter_request(request), stream=True)
            try:
                content = bytearray()
                for chunk in response.iter_raw():
                    content += chunk
                    if len(content) > MAX_ANSWER:
                        raise Away(f"{what}: the answer has more than {MAX_ANSWER >> 20} MiB")
                    if self._clock() > deadline:
                        raise Away(f"{what}: the answer is not complete after {self._timeout_s:g} s")
            finally:
                response.close()
        except httpx2.HTTPError as error:
            raise Away(f"{what}: no answer: {error or type(error).__name__}") from error
        except (ConfigError, OSError) as error:
            raise Denied(f"{what}: cannot read the credentials: {error}") from error
        return response.status_code, response.headers, bytes(content)


def error_of(status: int, headers: Mapping[str, str], content: bytes, what: str) -> BackendError:
    """Return the error that an answer outside 2xx stands for. Its body may come from a proxy and not be a Status."""
    answer = _status_object(content)
    message = " ".join(str(answer.get("message", "")).split())[:MAX_TEXT]
    text = f"{what}: answered {status}{f': {message}' if message else ''}"
    if status == 422 and _names_uid(answer):
        return Conflict(f"{text}; another object has its name")
    kind = _KINDS.get(status, Away if status >= 500 else Invalid)
    return kind(text, _retry_after_s(headers, answer))


_KINDS: Mapping[int, type[BackendError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    408: Away,
    409: Conflict,
    410: Away,  # a list that took too long to page through
    429: TooMany,
}


def _status_object(content: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _retry_after_s(headers: Mapping[str, str], answer: Mapping[str, Any]) -> float | None:
    """From the header, else from the Status. A date, which the header may hold too, is ignored."""
    text = headers.get("Retry-After") or str((answer.get("details") or {}).get("retryAfterSeconds") or "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


def _names_uid(answer: Mapping[str, Any]) -> bool:
    """The server lists one cause for each immutable field that the uid of another object implies."""
    causes = (answer.get("details") or {}).get("causes") or ()
    return any(isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in causes)


def cut(text: str, max_bytes: int) -> str:
    """Return the text in at most `max_bytes` of UTF-8, with an ellipsis if it was longer."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    return encoded[: max_bytes - 3].decode(errors="ignore") + "…"


def _object_reference(ref: Ref) -> dict[str, str]:
    return {
        "apiVersion": ref.group_version,
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
        "uid": ref.uid,
    }


def _path_of(ref: Ref) -> str:
    return _path(ref.group_version, ref.group_kind, ref.namespace, ref.name)


def _path(version: str, kind: GroupKind, namespace: str, name: str | None = None) -> str:
    """Names may come from an alert. One that no object can have never reaches a URL."""
    for part in (namespace, name):
        if part is not None and not NAME.fullmatch(part):
            raise NotFound(f"{kind} {part!r:.80}: not a valid name")
    root = f"apis/{version}" if group_of(version) else f"api/{version}"
    path = f"{root}/namespaces/{namespace}/{RESOURCES[kind].plural}"
    return path if name is None else f"{path}/{name}"
