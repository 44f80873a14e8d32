"""Bounds on connections and requests: no client can fill, block or outwait the server."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpufrag.web import connections
from gpufrag.web.runner import Service
from helpers import wait_until
from running_server import Gate, hello, posting, received

HEAD, POST = b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n"


def answered(client: socket.socket) -> bool:
    """Return whether a whole answer with status 200 comes."""
    answer = b""
    while not answer.endswith(b"hello\n"):
        answer += client.recv(1000) or b"the connection ended, not in hello\n"
    return answer.startswith(b"HTTP/1.1 200 ")


def warnings(caplog: pytest.LogCaptureFixture) -> list[object]:
    """Return the fields of everything above INFO."""
    return [vars(record).get("fields") for record in caplog.records if record.levelname != "INFO"]


def test_request_beyond_the_bound_gets_503(start: Any, gate: Gate) -> None:
    server = start(gate.service, max_requests=1)
    with server.connect() as first:
        first.sendall(HEAD + b"\r\n")
        gate.wait()
        refused = server.get()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert server.get("/-/healthy").status_code == 200
        gate.open.set()
        assert answered(first)
    assert server.get().status_code == 200


def test_one_address_cannot_take_all_request_slots(start: Any, gate: Gate) -> None:
    server = start(gate.service, listen_address=":0", max_requests=4)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(server.connect())
            client.sendall(HEAD + b"\r\n")
            gate.wait()
        refused = server.get()
        assert (refused.status_code, refused.text.strip()) == (503, "too many requests")  # not a timeout
        other = stack.enter_context(socket.create_connection(("::1", server.port), timeout=10))
        other.sendall(HEAD + b"\r\n")
        gate.wait()
        gate.open.set()
        assert answered(other)


@pytest.mark.parametrize("silent", [b"", HEAD, HEAD + b"\r\n"], ids=["silent", "partial", "idle"])
def test_waiting_connections_do_not_lock_out_a_request(start: Any, silent: bytes) -> None:
    server = start(max_connections=4)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(4)]
        for client in clients:
            client.sendall(silent)
        assert server.get().status_code == 200
        assert server.get("/-/healthy").status_code == 200


def test_connection_that_waits_longest_is_replaced(start: Any) -> None:
    server = start(max_connections=2)
    with server.connect() as first, server.connect() as second:
        second.sendall(HEAD + b"\r\n")
        assert answered(second)  # it was admitted, so it stays
        with server.connect() as third:
            third.sendall(HEAD + b"\r\n")
            assert answered(third)
            assert received(first) == b""
            second.sendall(HEAD + b"\r\n")
            assert answered(second)


def test_admitted_connection_is_replaced_last(start: Any) -> None:
    server = start(max_connections=2)
    with server.connect() as admitted:
        admitted.sendall(HEAD + b"\r\n")
        assert answered(admitted)
        with server.connect() as silent, server.connect() as third:
            third.sendall(HEAD + b"\r\n")
            assert answered(third)
            assert received(silent) == b""
            admitted.sendall(HEAD + b"\r\n")
            assert answered(admitted)


def test_connection_gets_503_if_all_others_are_busy(start: Any, gate: Gate) -> None:
    server = start(gate.service, max_connections=1)
    with server.connect() as first:
        first.sendall(HEAD + b"\r\n")
        gate.wait()
        with server.connect() as second:
            answer = received(second)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        gate.open.set()
        assert answered(first)


def test_accepting_goes_on_after_descriptors_ran_out(
    start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "ACCEPT_AGAIN_S", 0.05)
    server = start()
    listener = server.server.connections._listener
    failures = iter([OSError(errno.EMFILE, "Too many open files")])

    class Failing:
        def accept(self) -> Any:
            for failure in failures:
                raise failure
            return listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    server.server.connections._listener = Failing()
    assert server.get().status_code == 200
    assert warnings(caplog) == [{"reason": "Too many open files"}]


@pytest.mark.parametrize(
    ("host", "status"),
    [("node-1:9836", 200), ("NODE-1", 200), ("[::1]:80", 200), ("evil.example", 421), ("node-1.evil.example", 421)],
)
def test_only_allowed_hosts_are_answered(start: Any, host: str, status: int) -> None:
    server = start(replace(hello(), open_paths=frozenset({"/-/healthy"})), allowed_hosts=("node-1", "::1"))
    assert server.get(headers={"host": host}).status_code == status
    assert server.get("/-/healthy", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["silent", "partial"])
def test_slow_head_is_cut_off(start: Any, sent: bytes) -> None:
    assert start(request_timeout=0.3).send(sent) == b""


def test_second_request_has_a_deadline_too(start: Any) -> None:
    server = start(request_timeout=0.3)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        assert answered(client)
        client.sendall(HEAD)
        assert received(client) == b""


def test_slow_answer_gets_503_and_a_log_line(start: Any, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    server = start(gate.service, request_timeout=0.3)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        answer = received(client)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"\r\ncontent-length: 25\r\n\r\nthe answer took too long\n")
    gate.open.set()
    server.stop()  # the app ended, and its late answer is ignored
    assert warnings(caplog) == [{"path": "/", "after": "300 ms"}]


def test_slow_body_is_not_logged(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = start(posting(max_body=5), request_timeout=0.3)
    assert server.send(POST + b"Content-Length: 5\r\n\r\nhe") == b""
    assert warnings(caplog) == []


def test_idle_connection_outlives_the_request_deadline(start: Any) -> None:
    server = start(request_timeout=0.2, keep_alive=30.0)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        assert answered(client)
        client.settimeout(0.6)
        with pytest.raises(TimeoutError):  # no answer, no end
            client.recv(1)
        client.settimeout(10)
        client.sendall(HEAD + b"\r\n")
        assert answered(client)


def test_idle_connection_ends_after_keep_alive(start: Any) -> None:
    assert start(keep_alive=0.2).send(HEAD + b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_client_that_does_not_read_is_cut_off(start: Any) -> None:
    async def answer(request: Request) -> Response:
        return PlainTextResponse("x" * (64 << 20))

    server = start(Service(Starlette(routes=[Route("/", answer)])), request_timeout=0.3, keep_alive=0.3)
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        wait_until(lambda: len(server.server.connections))
        wait_until(lambda: not len(server.server.connections))


@pytest.mark.parametrize("size", [9000, 100_000, 1_000_000])
def test_large_head_is_refused(start: Any, size: int) -> None:
    server = start(max_header_size=8192)
    try:
        answer = server.send(HEAD + b"X-Long: " + b"y" * size + b"\r\n\r\n")
    except (ConnectionResetError, BrokenPipeError):  # closed before all was sent
        answer = b"HTTP/1.1 400 "
    assert answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
    assert server.get().status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_method_gets_405(start: Any, method: str) -> None:
    answer = start().send(f"{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"allow: GET, HEAD\r\n" in answer


@pytest.mark.parametrize(
    "body", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize(("most", "status"), [(4, b"413"), (5, b"200")])
def test_body_is_read_up_to_its_bound(start: Any, body: bytes, most: int, status: bytes) -> None:
    answer = start(posting(max_body=most)).send(POST + b"Connection: close\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"hello") == (most == 5)


def test_client_that_leaves_during_its_body_is_not_logged(start: Any, caplog: pytest.LogCaptureFixture) -> None:
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
        client.sendall(POST + b"Content-Length: 5\r\n\r\nhe")
        assert entered.wait(10)
    assert left.wait(10)
    server.stop()
    assert "Exception" not in caplog.text


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"hello\r\n\r\n", b"GET /\r\n\r\n"]
)
def test_other_protocol_gets_400(start: Any, junk: bytes) -> None:
    assert start().send(junk).startswith(b"HTTP/1.1 400 ")


def test_pipelined_requests_are_all_answered(start: Any) -> None:
    answers = start().send((HEAD + b"\r\n") * 5 + HEAD + b"Connection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200 OK") == 6
