"""Real servers on loopback, made certificates, and a raw client for what no HTTP client would send."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import bcrypt
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpufrag.config import WebSettings
from gpufrag.web.runner import Service, WebServer

PATIENCE = 10.0


@dataclass
class Running:
    """A server in a thread of its own."""

    server: WebServer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @property
    def port(self) -> int:
        return self.server.address.port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def get(self, path: str = "/", **arguments: object) -> httpx.Response:
        return httpx.get(self.url(path), trust_env=False, timeout=PATIENCE, **arguments)  # type: ignore[arg-type]

    def call(self, function: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        self.call(self.server.end)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server on any free port; keyword arguments are its WebSettings. All are stopped at the end."""
    running: list[Running] = []

    def begin(service: Service | None = None, **settings: object) -> Running:
        ready = threading.Event()
        service = replace(service or hello(), started=lambda _: ready.set())
        defaults = {"listen_address": "127.0.0.1:0"}
        server = WebServer(service, WebSettings(**(defaults | settings)))  # type: ignore[arg-type]
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop, server))
        thread.start()
        assert ready.wait(PATIENCE)
        running.append(Running(server, loop, thread))
        return running[-1]

    yield begin
    for one in running:
        if one.thread.is_alive():
            one.stop()


def _run(loop: asyncio.AbstractEventLoop, server: WebServer) -> None:
    loop.run_until_complete(server.serve())
    loop.run_until_complete(asyncio.sleep(0))  # transports that were aborted are closed in the next turn
    loop.close()


def hello() -> Service:
    async def answer(request: Request) -> Response:
        return PlainTextResponse("hello\n")

    return Service(Starlette(routes=[Route("/", answer), Route("/-/healthy", answer)]))


@pytest.fixture
def hello_service() -> Service:
    return hello()


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Certificate]:
    """Self-made, for 127.0.0.1; each call makes another."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command: TLS cannot be tested")

    def make(name: str) -> Certificate:
        folder = tmp_path_factory.mktemp(name)
        cert, key = folder / "tls.crt", folder / "tls.key"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj"
        subject = [f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command.split(), *subject], check=True, capture_output=True)
        return Certificate(cert, key)

    return make


@pytest.fixture(scope="session")
def certificate(make_certificate: Callable[[str], Certificate]) -> Certificate:
    return make_certificate("server")


@pytest.fixture(scope="session")
def hashed() -> Callable[[str], str]:
    """A bcrypt hash at the lowest cost, as the web config file wants it."""
    return lambda password: bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a web config file, or another one."""

    def write_text(text: str, name: str = "web.yml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text
