"""What a client cannot do: fill, block or outwait the server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpufrag.web.runner import Service
from running_server import received

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


def answered(client: socket.socket) -> bool:
    """Whether one whole answer of 200 comes."""
    answer = b""
    while not answer.endswith(b"hello\n"):
        answer += client.recv(1000) or b"the connection ended, not in hello\n"
    return answer.startswith(b"HTTP/1.1 200 ")


def told(caplog: pytest.LogCaptureFixture) -> list[object]:
    """The fields of what is more than news."""
    return [vars(record).get("fields") for record in caplog.records if record.levelname != "INFO"]


class Gate:
    """An app whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.service = Service(Starlette(routes=[Route("/", self._answer)]))

    async def _answer(self, request: Request) -> Response:
        self.entered.release()
        while not self.open.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("hello\n")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_one_request_too_many_is_told_to_come_again(start: Any, gate: Gate) -> None:
    server = start(gate.service, max_requests=1)
    with server.connect() as first:
        first.sendall(HEAD + b"\r\n")
        assert gate.entered.acquire(timeout=10)
        refused = server.get()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        gate.open.set()
        assert answered(first)
    assert server.get().status_code == 200


def test_one_connection_too_many_is_told_to_come_again(start: Any) -> None:
    server = start(max_connections=1)
    with server.connect() as first, server.connect() as second:
        answer = received(second)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        first.sendall(HEAD + b"\r\n")
        assert answered(first)


def test_a_head_that_trickles_in_is_cut_off(start: Any) -> None:
    server = start(request_timeout=0.3)
    with server.connect() as client:
        client.sendall(HEAD)
        assert received(client) == b""


def test_a_silent_client_is_cut_off(start: Any) -> None:
    server = start(request_timeout=0.3)
    with server.connect() as client:
        assert received(client) == b""


def test_the_second_request_of_a_connection_has_a_deadline_too(start: Any) -> None:
    server = start(request_timeout=0.3)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        assert answered(client)
        client.sendall(HEAD)
        assert received(client) == b""


def test_an_answer_that_takes_too_long_is_given_up_and_told(
    start: Any, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(gate.service, request_timeout=0.3)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        answer = received(client)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"\r\ncontent-length: 25\r\n\r\nthe answer took too long\n")
    gate.open.set()
    server.stop()  # the app has ended by then, and nobody minds what it said
    assert told(caplog) == [{"path": "/", "after": "300 ms"}]


def test_what_is_the_clients_fault_is_no_news(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def read(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    service = Service(Starlette(routes=[Route("/", read, methods=["POST"])]), methods=("POST",), max_body=5)
    with start(service, request_timeout=0.3).connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
        assert received(client) == b""
    assert told(caplog) == []


def test_an_idle_connection_outlives_the_deadline_of_a_request(start: Any) -> None:
    server = start(request_timeout=0.2, keep_alive=30.0)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        assert answered(client)
        client.settimeout(0.6)
        with pytest.raises(TimeoutError):  # neither an answer nor an end
            client.recv(1)
        client.settimeout(10)
        client.sendall(HEAD + b"\r\n")
        assert answered(client)


def test_an_idle_connection_ends_in_time(start: Any) -> None:
    server = start(keep_alive=0.2)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        assert received(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_is_cut_off(start: Any) -> None:
    async def answer(request: Request) -> Response:
        return PlainTextResponse("x" * (64 << 20))

    server = start(Service(Starlette(routes=[Route("/", answer)])), request_timeout=0.3, keep_alive=0.3)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        _wait_until(lambda: bool(server.server.server_state.connections))
        _wait_until(lambda: not server.server.server_state.connections)


@pytest.mark.parametrize("size", [9000, 100_000, 1_000_000])
def test_a_huge_head_is_refused(start: Any, size: int) -> None:
    server = start(max_header_size=8192)
    with server.connect() as client:
        try:
            client.sendall(HEAD + b"X-Long: " + b"y" * size + b"\r\n\r\n")
            answer = received(client)
        except (ConnectionResetError, BrokenPipeError):  # it hung up on us before we were done
            answer = b"HTTP/1.1 400 "
        assert answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
    assert server.get().status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_not_allowed(start: Any, method: str) -> None:
    server = start()
    with server.connect() as client:
        client.sendall(f"{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = received(client)
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"allow: GET, HEAD\r\n" in answer


@pytest.mark.parametrize(
    "body", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"]
)
def test_a_body_is_bounded(start: Any, body: bytes) -> None:
    async def echo(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    service = Service(Starlette(routes=[Route("/", echo, methods=["POST"])]), methods=("POST",), max_body=4)
    with start(service).connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + body)
        assert received(client).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_goes_away_in_the_midst_of_its_body_is_no_fault(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    entered, left = threading.Event(), threading.Event()

    async def read(request: Request) -> Response:
        entered.set()
        try:
            return PlainTextResponse(await request.body())
        finally:
            left.set()

    service = Service(Starlette(routes=[Route("/", read, methods=["POST"])]), methods=("POST",), max_body=5)
    server = start(service)
    with server.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
        assert entered.wait(10)
    assert left.wait(10)
    server.stop()
    assert "Exception" not in caplog.text


def test_a_body_within_its_bound_is_read(start: Any) -> None:
    async def echo(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    service = Service(Starlette(routes=[Route("/", echo, methods=["POST"])]), methods=("POST",), max_body=5)
    with start(service).connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
        assert received(client).endswith(b"hello")


def test_what_is_no_http_is_refused(start: Any) -> None:
    server = start()
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"hello\r\n\r\n", b"GET /\r\n\r\n"):
        with server.connect() as client:
            client.sendall(junk)
            assert received(client).startswith(b"HTTP/1.1 400 ")


def test_requests_in_a_pipeline_are_all_answered(start: Any) -> None:
    with start().connect() as client:
        client.sendall((HEAD + b"\r\n") * 5 + HEAD + b"Connection: close\r\n\r\n")
        assert received(client).count(b"HTTP/1.1 200 OK") == 6


def _wait_until(true: Any) -> None:
    for _ in range(1000):
        if true():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not become true within 10 s")
