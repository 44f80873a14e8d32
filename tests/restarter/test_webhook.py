"""The webhook: what it answers, and that nothing blocks it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from gpufrag.restarter import metrics
from gpufrag.restarter.alerts import MAX_BODY
from gpufrag.restarter.worker import AlertQueue
from restarter.memory_backend import MemoryBackend
from restarter.webhook_bodies import ALERT, body, broken
from restarter.worker_rig import Rig
from running_server import PATIENCE, Running, received, running


@pytest.fixture
def rig():
    return Rig()


def post(server: Running, content: bytes, path: str = "/v1/alerts") -> httpx.Response:
    return httpx.post(server.url(path), content=content, trust_env=False, timeout=PATIENCE)


@pytest.fixture
def server(rig):
    with running(rig.webhook.service(), request_timeout=1.0) as one:
        yield one


def test_alerts_are_accepted_at_once(rig, server):
    answer = post(server, body())
    assert (answer.status_code, answer.text) == (202, "accepted\n")
    assert rig.metrics.value(metrics.QUEUE) == 2
    assert rig.backend.calls == []  # nothing was done yet
    assert rig.metrics.value(metrics.RECEIVED, "resolved") == 1


@pytest.mark.parametrize(("content", "answer"), [(b"{", "malformed"), (body(version="5"), "version")])
def test_invalid_call_is_rejected_and_counted(rig, server, content, answer):
    assert post(server, content).status_code == 400
    assert rig.metrics.value(metrics.CALLS, answer) == 1


def test_full_queue_is_answered_503():
    rig = Rig()
    rig.worker._queue = AlertQueue(3)
    with running(rig.webhook.service()) as server:
        assert post(server, body()).status_code == 202
        refused = post(server, body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert rig.metrics.value(metrics.CALLS, "full") == 1
    assert rig.metrics.value(metrics.QUEUE) == 2  # all of a call, or none


def test_large_body_is_not_read(rig, server):
    with server.connect() as client:
        client.sendall(f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n".encode())
        assert received(client).startswith(b"HTTP/1.1 413 ")
    assert post(server, body(alerts=[ALERT] * 900)).status_code == 202


def test_slow_body_is_cut_off(server):
    with server.connect() as client:
        client.sendall(b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert received(client) == b""
    assert post(server, body()).status_code == 202


def statuses(rig: Rig, contents: list[bytes]) -> set[int]:
    """Return what the app answers, without a network."""
    app = rig.webhook.service().app
    found: set[int] = set()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.add(message["status"])

    async def ask(content: bytes) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        scope = {"type": "http", "method": "POST", "path": "/v1/alerts", "headers": [], "query_string": b""}
        await app(scope, receive, send)

    async def ask_all() -> None:
        for content in contents:
            await ask(content)

    asyncio.run(ask_all())
    return found


@pytest.mark.parametrize("chunk", range(10))
def test_broken_bodies_never_cause_a_500(chunk):
    chance = random.Random(100 + chunk)
    rig = Rig()
    rig.worker._queue = AlertQueue(10_000)
    assert statuses(rig, [broken(chance) for _ in range(1000)]) == {202, 400}
    assert not rig.backend.suspensions
    rig.turn()
    assert rig.metrics.value(metrics.REFUSED_ALERTS, "internal-error") == 0


def test_decisions_can_be_read(rig, server):
    rig.send().go()
    found = server.get("/v1/decisions").json()
    assert [one["outcome"] for one in found] == ["restarted", "started"]
    assert found[0]["job"] == "job train"
    assert [{"msg": "decision", **one} for one in reversed(found)] == list(
        map(json.loads, rig.stream.getvalue().splitlines())
    )


def test_circuit_can_be_closed(rig, server):
    rig.webhook.circuit.open("for a test")
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 1
    assert server.get("/v1/circuit/close").status_code == 405
    answer = post(server, b"", "/v1/circuit/close")
    assert (answer.status_code, answer.text) == (200, "closed\n")
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 0
    assert rig.outcomes == ["circuit-closed circuit-closed"]


@pytest.mark.parametrize("path", ["/v1/alerts", "/v1/circuit/close"])
@pytest.mark.parametrize("header", ["origin", "sec-fetch-site"])
def test_request_of_a_web_page_is_rejected(rig, server, path, header):
    answer = httpx.post(server.url(path), content=body(), headers={header: "x"}, trust_env=False, timeout=PATIENCE)
    assert answer.status_code == 403
    assert rig.metrics.value(metrics.QUEUE) is None


def test_circuit_that_cannot_be_stored_is_not_closed():
    rig = Rig(backend=MemoryBackend(circuit=None))
    with running(rig.webhook.service()) as server:
        assert post(server, b"", "/v1/circuit/close").status_code == 503
