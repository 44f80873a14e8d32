"""Requests to servers: the answer, the bounds on it, and what is reported when there is none."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpufrag.errors import Unavailable, UsageError
from gpufrag.web.client import Client, NotListening, require_url


class Server:
    """Answers every request with `respond`, by default an echo of it as JSON."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.respond: Callable[[BaseHTTPRequestHandler], None] = echo
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    outer.respond(self)

            do_POST = do_GET

            def log_message(self, *arguments: object) -> None:
                """Keep the test's output clean."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=lambda: self.http.serve_forever(poll_interval=0.02))
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            self.http.shutdown()
            thread.join()
            self.http.server_close()


def echo(request: BaseHTTPRequestHandler) -> None:
    body = request.rfile.read(int(request.headers.get("content-length", 0))).decode()
    kind, token = request.headers.get("content-type"), request.headers.get("authorization")
    answer(request, 200, json.dumps([request.command, request.path, body, kind, token]))


def answer(request: BaseHTTPRequestHandler, status: int, text: str, **headers: str) -> None:
    request.send_response(status)
    for name, value in {"content-length": str(len(text)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().running() as running:
        yield running


def test_request_carries_path_body_and_token(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\nnext\n")
    client = Client(f"{server.url}/prom/", bearer_file=tmp_path / "token")
    assert client.get("/x?y=1").json() == ["GET", "/prom/x?y=1", "", None, "Bearer secret"]
    form = ["POST", "/prom/x", "query=up+1", "application/x-www-form-urlencoded", "Bearer secret"]
    assert client.post_form("/x", {"query": "up 1"}).json() == form
    assert client.post_json("/x", {}).json() == ["POST", "/prom/x", "{}", "application/json", "Bearer secret"]


@pytest.mark.parametrize(
    ("status", "text", "problem"),
    [
        (302, "", "status 302$"),
        (401, "", "status 401; it requires a token"),
        (200, "<html>", "did not answer with JSON"),
    ],
)
def test_answer_without_json_is_an_error(server: Server, status: int, text: str, problem: str) -> None:
    server.respond = lambda request: answer(request, status, text, location=f"{server.url}/elsewhere")
    found = Client(server.url).get("/x")
    assert (found.status, found.text) == (status, text)
    with pytest.raises(Unavailable, match=problem):
        found.json()


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"", b""),
    ],
    ids=["header", "body", "body without length", "nothing"],
)
def test_slow_answer_ends_at_the_deadline(server: Server, begin: bytes, rest: bytes) -> None:
    def respond(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(begin)
        while not server.over.wait(0.02):
            request.wfile.write(rest)

    server.respond = respond
    with pytest.raises(Unavailable, match="no complete answer within 300 ms"):
        Client(server.url, timeout_s=0.3).get("/")


@pytest.mark.parametrize("headers", [b"Content-Length: 1000\r\n", b""])
def test_large_answer_is_refused(server: Server, headers: bytes) -> None:
    content = b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n" + b"x" * 1000
    server.respond = lambda request: request.wfile.write(content) and None
    with pytest.raises(Unavailable, match="more than 999 bytes"):
        Client(server.url, max_bytes=999).get("/")
    assert len(Client(server.url, max_bytes=1000).get("/").body) == 1000


@pytest.mark.parametrize("content", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", b""])
def test_broken_answer_is_an_error(server: Server, content: bytes) -> None:
    server.respond = lambda request: request.wfile.write(content) and None
    with pytest.raises(Unavailable, match=f"cannot reach {server.url}/x: "):
        Client(server.url).get("/x")


def test_closed_port_is_not_listening() -> None:
    with Server().running() as gone:
        pass
    with pytest.raises(NotListening, match=f"cannot reach {gone.url}/x: connection refused"):
        Client(gone.url).get("/x")


def test_certificate_is_verified(certificate: Any, make_certificate: Callable[[str], Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    with Server(context).running() as server:
        assert Client(server.url, ca_file=certificate.cert).get("/").status == 200
        for client in (
            Client(server.url),
            Client(server.url, ca_file=make_certificate("other").cert),
            Client(server.url, ca_file=certificate.cert, server_name="elsewhere"),
        ):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                client.get("/")


@pytest.mark.parametrize("text", ["", "\n", "ü"])
def test_unusable_files_are_named(server: Server, tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(Unavailable, match=f"token file {tmp_path}/file"):
        Client(server.url, bearer_file=tmp_path / "file").check()
    with pytest.raises(Unavailable, match=f"cannot use CA file {tmp_path}/file"):
        Client(server.url, ca_file=tmp_path / "file").check()
    with pytest.raises(Unavailable, match=r"none: No such file"):
        Client(server.url, bearer_file=tmp_path / "none").get("/")


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://x", "http://", "http://x y:9090", "http://x:nine", "http://x:0", "http://x/?q", "http://[x"]
)
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--prometheus is not a server address"):
        require_url(url, "--prometheus")


def test_password_in_an_address_is_refused_without_quoting_it() -> None:
    with pytest.raises(UsageError, match="contains a user or a password") as caught:
        require_url("http://user:hunter2@x", "--prometheus")
    assert "hunter2" not in str(caught.value)
