"""The fake API server: HTTP or HTTPS on loopback, in threads of the test's process.

    with fake_api() as api:
        api.world.apply(manifests.job())
        client = KubernetesClient(api.config(), trust_env=False)

It answers as a 1.36 server was seen to answer. `api.faults` plans faults, `api.users` has the permissions, `api.log`
the requests.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig

from restarter.fake_api.controllers import deleting, ready, set_condition
from restarter.fake_api.store import POD, SERVED, Failure, Raw, Served, of, selects, validate
from restarter.fake_api.world import World

TOKEN = "good-token"
BUDGET = of("policy/v1", "PodDisruptionBudget")
EVICTION = Served("policy/v1", "Eviction", "evictions")
ACCESS = Served("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
SUBJECT = Served("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews")
EVENT_NEEDS = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
ADMIN = ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},)


@dataclass(frozen=True)
class User:
    """A user with the rules of a Role in a namespace; `*` is every namespace."""

    name: str
    rules: tuple[Mapping[str, Any], ...] = ADMIN
    namespace: str = "*"

    def may(self, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
        asked = {"verbs": verb, "apiGroups": group, "resources": resource}
        return self.namespace in ("*", namespace) and any(
            name in rule.get("resourceNames", [name])
            and all({"*", value} & set(rule[key]) for key, value in asked.items())
            for rule in self.rules
        )


@dataclass(frozen=True)
class Fault:
    """A fault of one request. With `done`, the request is carried out and only its answer is affected."""

    status: int | None = None
    """The status of the answer; None: the connection is cut."""
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    body: bytes = b"upstream connect error"
    wait: threading.Event | None = None
    """The answer waits for this event."""


STORM = Fault(503)
CUT = Fault()
CUT_AFTER = Fault(done=True)


class Faults:
    """Planned faults: each request gets the first one that matches it."""

    def __init__(self) -> None:
        self.clear()
        self.requests = 0

    def clear(self) -> None:
        self._planned: list[tuple[Callable[[int, str, str], bool], Fault]] = []

    def at(self, number: int, fault: Fault) -> None:
        """Plan a fault of one request; 1 is the next."""
        wanted = self.requests + number
        self._planned.append((lambda count, method, path: count == wanted, fault))

    def on(self, method: str, part: str, fault: Fault) -> None:
        """Plan a fault of every request of this method whose path contains this part."""
        self._planned.append((lambda count, asked, path: asked == method and part in path, fault))

    def always(self, fault: Fault) -> None:
        self._planned.append((lambda count, method, path: True, fault))

    def take(self, method: str, path: str) -> Fault | None:
        self.requests += 1
        return next((fault for matches, fault in self._planned if matches(self.requests, method, path)), None)


@dataclass(frozen=True)
class Request:
    """A request; once it was answered, `code` is the answer's, or None if the connection was cut."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    content_type: str
    code: int | None = None

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:  # a client that was killed sends half a body
            raise Failure(400, "BadRequest", "the body is not JSON") from None


class NoSuchPath(Exception):
    """404 with the plain text of Go's web server."""


class Place(NamedTuple):
    """What a path names: a collection, an object, or a subresource."""

    served: Served
    namespace: str
    name: str = ""
    part: str = ""

    @property
    def resource(self) -> str:
        return f"{self.served.plural}/{self.part}" if self.part else self.served.plural


def place(path: str) -> Place:
    """Raises NoSuchPath if the group, version or kind is not served."""
    match [unquote(part) for part in path.strip("/").split("/")[1:]]:
        case [version, "namespaces", namespace, plural, *rest]:
            pass
        case [group, version, "namespaces", namespace, plural, *rest]:
            version = f"{group}/{version}"
        case _:
            raise NoSuchPath
    for one in SERVED:
        if (one.group_version, one.plural) == (version, plural):
            return Place(one, namespace, *rest)
    raise NoSuchPath


class FakeApi:
    """The server, as a test uses it."""

    def __init__(self, port: int, certificate: Path | None) -> None:
        self.port, self.certificate = port, certificate
        self.crashes: list[Exception] = []
        self.users: dict[str, User] = {TOKEN: User("system:serviceaccount:gpufrag:restarter")}
        self.reset()

    def reset(self) -> None:
        """Start with an empty cluster and no faults."""
        self.world, self.faults = World(), Faults()
        self.log: list[Request] = []

    def kubeconfig(self, token: str = TOKEN) -> dict[str, Any]:
        scheme, trusted = "http", {}
        if self.certificate:
            scheme, trusted = "https", {"certificate-authority": str(self.certificate)}
        return {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": f"{scheme}://127.0.0.1:{self.port}", **trusted}}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "ml"}}],
        }

    def config(self, token: str = TOKEN) -> SingleConfig:
        config = KubeConfig.from_dict(self.kubeconfig(token)).get()
        assert config is not None
        return config

    def write_kubeconfig(self, path: Path) -> Path:
        path.write_text(yaml.safe_dump(self.kubeconfig()), encoding="utf-8")
        return path

    def sent(self, method: str, part: str = "") -> list[Request]:
        """Return the successful requests of this method whose path contains this part."""
        return [one for one in self.log if one.method == method and part in one.path and one.code in (200, 201)]

    def answer(self, request: Request, token: str) -> tuple[int, bytes]:
        try:
            if token not in self.users:
                raise Failure(401, "Unauthorized", "Unauthorized")
            with self.world.lock:
                code, body = self._answer(request, self.users[token])
                return code, json.dumps(body).encode()
        except Failure as failure:
            return failure.code, json.dumps(failure.body).encode()
        except NoSuchPath:
            return 404, b"404 page not found\n"
        except Exception as error:  # a bug of the fake: the test fails at its end
            self.crashes.append(error)
            return 500, b"the fake API server crashed\n"

    def _answer(self, request: Request, user: User) -> tuple[int, Any]:
        """Raises Failure and NoSuchPath."""
        match request.path.strip("/").split("/"):
            case ["apis", group]:
                versions = [{"groupVersion": one.group_version} for one in SERVED if one.group == group]
                if not versions:
                    raise NoSuchPath
                return 200, {"kind": "APIGroup", "preferredVersion": versions[0], "versions": versions[:1]}
            case ["apis", _, "v1", "selfsubjectreviews"]:
                validate(SUBJECT, request.json())
                return 201, {"status": {"userInfo": {"username": user.name}}}
            case ["apis", _, "v1", "selfsubjectaccessreviews"]:
                validate(ACCESS, request.json())
                asked = request.json()["spec"]["resourceAttributes"]
                resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
                named = asked["namespace"], asked.get("name", "")
                return 201, {"status": {"allowed": user.may(asked["verb"], asked["group"], resource, *named)}}
        self.world.tick()
        where = place(request.path)
        verb = "list" if request.method == "GET" and not where.name else VERBS[request.method]
        if not user.may(verb, where.served.group, where.resource, where.namespace, where.name):
            cannot = (
                f'User "{user.name}" cannot {verb} resource "{where.resource}" in the namespace "{where.namespace}"'
            )
            raise Failure(403, "Forbidden", f"forbidden: {cannot}")
        if verb == "create" and not where.part and where.namespace in self.world.terminating:
            raise Failure(403, "Forbidden", f"namespace {where.namespace} is being terminated")
        return self._act(verb, request, where)

    def _act(self, verb: str, request: Request, where: Place) -> tuple[int, Any]:
        world, (served, namespace, name, part) = self.world, where
        match verb, part:
            case "list", "":
                return 200, _page(
                    world.of_kind(served, namespace, request.query.get("labelSelector", "")), request.query
                )
            case "get", "":
                return 200, world.find(served, namespace, name)
            case "create", "":
                body = request.json()
                if served.kind == "Event" and not all(map(body.get, EVENT_NEEDS)):
                    raise Failure(422, "Invalid", "Event is invalid: Required value", "reason")
                return 201, world.create(served, namespace, body, request.dry_run)
            case "patch", "":
                if request.content_type != "application/merge-patch+json":
                    raise Failure(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
                return 200, world.patch(served, namespace, name, request.json(), request.dry_run)
            case "delete", "":
                world.delete(world.find(served, namespace, name), graceful=served == POD)
                return 200, {"kind": "Status", "status": "Success"}
            case "create", "eviction":
                self._evict(world.find(POD, namespace, name), request)
                return 201, {"kind": "Status", "status": "Success"}
        raise NoSuchPath

    def _evict(self, pod: Raw, request: Request) -> None:
        meta, body = pod["metadata"], request.json()
        validate(EVICTION, body)
        if body["deleteOptions"]["preconditions"]["uid"] != meta["uid"]:
            raise Failure(409, "Conflict", f'"{meta["name"]}": Precondition failed: UID in precondition')
        for budget in self.world.of_kind(BUDGET, meta["namespace"]):
            selector = ",".join(f"{key}={value}" for key, value in budget["spec"]["selector"]["matchLabels"].items())
            healthy = [one for one in self.world.of_kind(POD, meta["namespace"], selector) if ready(one)]
            if selects(selector, pod) and len(healthy) <= budget["spec"]["minAvailable"]:
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Failure(429, "TooManyRequests", text)  # without Retry-After
        if not request.dry_run and not deleting(pod):
            set_condition(pod["status"], "DisruptionTarget", True)
            self.world.delete(pod, graceful=True)


def _page(found: list[Raw], query: Mapping[str, str]) -> Raw:
    """The items of a list do not name their kind."""
    start, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(found)
    items = [{key: value for key, value in raw.items() if key not in ("kind", "apiVersion")} for raw in found]
    more = {"continue": str(start + limit)} if start + limit < len(items) else {}
    return {"metadata": more, "items": items[start : start + limit]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet per answer: a second would wait for an acknowledgement
    api: FakeApi

    def _serve(self) -> None:
        url, content = urlsplit(self.path), self.rfile.read(int(self.headers.get("Content-Length", "0")))
        query = dict(parse_qsl(url.query))
        request = Request(self.command, url.path, query, content, self.headers.get("Content-Type", ""))
        fault = self.api.faults.take(self.command, url.path)
        code, answer, headers = fault.status if fault else None, b"", {}
        if fault is None or fault.done:
            code, answer = self.api.answer(request, self.headers.get("Authorization", "").removeprefix("Bearer "))
        self.api.log.append(replace(request, code=code))
        if fault is not None:
            if fault.wait is not None:
                fault.wait.wait(10)
            code, answer, headers = fault.status, fault.body, fault.headers
        if code is None:
            self.close_connection = True
            return
        self.send_response(code)
        kind = "application/json" if answer.startswith(b"{") else "text/plain"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(answer)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve

    def log_message(self, *arguments: object) -> None:
        """`api.log` replaces it."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Some tests make clients hang up."""


@contextlib.contextmanager
def fake_api(certificate: Path | None = None, key: Path | None = None) -> Iterator[FakeApi]:
    """Yield a server on a free port; HTTPS with a certificate for 127.0.0.1."""
    server = _Server(("127.0.0.1", 0), _Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    api = FakeApi(server.server_address[1], certificate)
    server.RequestHandlerClass = type("Handler", (_Handler,), {"api": api})
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
    if api.crashes:
        raise api.crashes[0]
