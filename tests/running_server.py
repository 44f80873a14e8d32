"""A real server in a thread of the test process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpufrag.config.sidecar import NvmlSettings, ServeConfig, WebSettings
from gpufrag.sidecar.server import Sidecar
from gpufrag.web.runner import Service, WebServer

PATIENCE = 10.0


@dataclass
class Running:
    """A server in its own thread."""

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

    def send(self, request: str | bytes) -> bytes:
        """Send it in a connection of its own; return all that comes until the server closes it."""
        with self.connect() as client:
            client.sendall(request if isinstance(request, bytes) else request.encode())
            return received(client)

    def call(self, function: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        self.call(self.server.end)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def running(service: Service, **settings: Any) -> Iterator[Running]:
    """Serves on any free port; keyword arguments are its WebSettings."""
    ready = threading.Event()
    service = replace(service, started=lambda _: ready.set())
    server = WebServer(service, WebSettings(**({"listen_address": "127.0.0.1:0"} | settings)))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop, server))
    thread.start()
    assert ready.wait(PATIENCE)
    one = Running(server, loop, thread)
    try:
        yield one
    finally:
        if thread.is_alive():
            one.stop()


def sidecar_of(at: Path, **sections: Any) -> Sidecar:
    """A sidecar that reads the folder `at`, without NVML, with these sections of its config."""
    config = ServeConfig(nvml=NvmlSettings(enabled=False), **sections)
    return Sidecar(config, lambda config: config.folder.path or at, lambda: config)


def _run(loop: asyncio.AbstractEventLoop, server: WebServer) -> None:
    loop.run_until_complete(server.serve())
    loop.run_until_complete(asyncio.sleep(0))  # transports that were aborted are closed in the next turn
    loop.close()


def hello() -> Service:
    """Says hello at / and at one probe's path."""

    async def answer(request: Request) -> Response:
        return PlainTextResponse("hello\n")

    return Service(Starlette(routes=[Route("/", answer), Route("/-/healthy", answer)]))


def posting(max_body: int) -> Service:
    """Answers a POST with its body."""

    async def answer(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    return Service(Starlette(routes=[Route("/", answer, methods=["POST"])]), methods=("POST",), max_body=max_body)


class Gate:
    """A service whose answers wait for `open`, except to one probe's path."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Semaphore(0), threading.Event()
        routes = [Route("/", self._answer), Route("/-/healthy", self._healthy)]
        self.service = Service(Starlette(routes=routes), open_paths=frozenset({"/-/healthy"}))

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _answer(self, request: Request) -> Response:
        self.entered.release()
        while not self.open.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("hello\n")

    def wait(self) -> None:
        """Until another request is inside."""
        assert self.entered.acquire(timeout=PATIENCE)

    def close(self) -> None:
        self.open.set()


def received(client: socket.socket) -> bytes:
    """All that the server sends until the connection ends, closed or reset."""
    whole = b""
    try:
        while data := client.recv(65536):
            whole += data
    except ConnectionResetError:
        pass
    return whole
