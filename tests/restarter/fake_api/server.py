"""The fake API server: real HTTP or HTTPS on loopback, in threads of the test's process.

    with fake_api() as api:
        api.world.apply(manifests.job())
        cluster = KubernetesCluster(api.config(), trust_env=False)

`api.faults` plans faults, `api.users` has the permissions, `api.log` the requests.
"""

from __future__ import annotations

import contextlib
import copy
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig

from restarter.fake_api import handlers, status
from restarter.fake_api.faults import Fault, Faults
from restarter.fake_api.rbac import User
from restarter.fake_api.requests import Answer, Request, place, split
from restarter.fake_api.served import Served
from restarter.fake_api.status import ApiError, NoSuchPath
from restarter.fake_api.world import World

TOKEN = "good-token"
ACCESS = Served("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
SUBJECT = Served("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")
REVIEWS = {f"/apis/{one.group_version}/{one.plural}": one for one in (ACCESS, SUBJECT)}


@dataclass(frozen=True)
class Logged:
    """An answered request; `code` is None if the connection was cut."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    content_type: str
    code: int | None


class FakeApi:
    """The server, as a test uses it."""

    def __init__(self, port: int, certificate: Path | None) -> None:
        self.port, self.certificate = port, certificate
        self.crashes: list[Exception] = []
        self.reset()
        self.users: dict[str, User] = {TOKEN: User("system:serviceaccount:gpufrag:restarter")}

    def reset(self) -> None:
        """Start with an empty cluster and no faults."""
        self.world = World()
        self.faults = Faults()
        self.log: list[Logged] = []

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, token: str = TOKEN) -> dict[str, Any]:
        cluster = {"server": self.url, **({"certificate-authority": str(self.certificate)} if self.certificate else {})}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "ml"}}],
        }

    def config(self, token: str = TOKEN) -> SingleConfig:
        config = KubeConfig.from_dict(self.kubeconfig(token)).get()
        assert config is not None
        return config

    def write_kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        path.write_text(yaml.safe_dump(self.kubeconfig(token)), encoding="utf-8")
        return path

    def sent(self, method: str, part: str = "") -> list[Logged]:
        """Return the successful requests of this method whose path contains this part."""
        return [one for one in self.log if one.method == method and part in one.path and one.code in (200, 201)]

    def answer(self, request: Request, token: str) -> Answer:
        user = self.users.get(token)
        try:
            if user is None:
                raise status.unauthorized()
            if request.path in REVIEWS:
                return Answer(201, self._review(REVIEWS[request.path], request.json(), user))
            return self._object(request, user)
        except ApiError as error:
            return Answer(error.code, error.body, error.headers)
        except NoSuchPath:
            return Answer(404, b"404 page not found\n")
        except Exception as error:  # a bug of the fake: the test fails at its end
            self.crashes.append(error)
            return Answer(500, b"the fake API server crashed\n")

    def _object(self, request: Request, user: User) -> Answer:
        parts = request.path.strip("/").split("/")
        with self.world.store.lock:
            self.world.tick()
            if parts[0] == "apis" and len(parts) == 2:
                return handlers.group_of(parts[1])
            where = place(request.path)
            verb = handlers.verb_of(request, where)
            if not user.may(verb, where.served.group, where.resource, where.namespace, where.name or ""):
                raise status.forbidden(user.name, verb, where.served, where.resource, where.namespace)
            if verb == "create" and where.part == "" and where.namespace in self.world.terminating:
                raise status.terminating(where.namespace)
            answer = handlers.handle(self.world.store, request, where)
            return Answer(answer.code, copy.deepcopy(answer.body), answer.headers)

    def _review(self, what: Served, body: dict[str, Any], user: User) -> dict[str, Any]:
        handlers.check(what, body)
        if what == SUBJECT:
            return {**body, "status": {"userInfo": {"username": user.name}}}
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        name = asked.get("name", "")
        allowed = user.may(asked["verb"], asked["group"], resource, asked["namespace"], name)
        return {**body, "status": {"allowed": allowed}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet per answer: a second would wait for an acknowledgement
    api: FakeApi

    def _serve(self) -> None:
        path, query = split(self.path)
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, path, query, headers, content)
        fault = self.api.faults.take(self.command, path)
        if fault is None or fault.done:
            answer = self.api.answer(request, headers.get("authorization", "").removeprefix("Bearer "))
            self._log(request, answer.code)
        if fault is not None:
            self._suffer(request, fault)
        else:
            self._send(answer.code, *answer.content(), answer.headers)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def _suffer(self, request: Request, fault: Fault) -> None:
        if fault.wait is not None:
            fault.wait.wait(fault.wait_s)
        if not fault.done:
            self._log(request, fault.status)
        if fault.status is None:
            self.close_connection = True
        else:
            self._send(fault.status, "text/plain", fault.body, fault.headers)

    def _log(self, request: Request, code: int | None) -> None:
        given = request.headers.get("content-type", "")
        self.api.log.append(Logged(request.method, request.path, request.query, request.content, given, code))

    def _send(self, code: int, content_type: str, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

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
