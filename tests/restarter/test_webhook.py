"""The port that Alertmanager calls: what is answered, and that nothing can hold it up."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpufrag.restarter import metrics
from gpufrag.restarter.alerts import MAX_BODY
from gpufrag.restarter.settings import RestarterConfig
from restarter.memory_cluster import MemoryCluster
from restarter.webhook_bodies import ALERT, body, broken
from restarter.worker_rig import Rig
from running_server import PATIENCE, Running, received, running


@pytest.fixture
def rig() -> Rig:
    return Rig()


def post(server: Running, content: bytes, path: str = "/v1/alerts") -> httpx.Response:
    return httpx.post(server.url(path), content=content, trust_env=False, timeout=PATIENCE)


@pytest.fixture
def server(rig: Rig) -> Iterator[Running]:
    with running(rig.webhook.service(), request_timeout=1.0) as one:
        yield one


def test_alerts_are_accepted_at_once(rig: Rig, server: Running) -> None:
    answer = post(server, body())
    assert (answer.status_code, answer.text) == (202, "accepted\n")
    assert rig.metrics.value(metrics.QUEUE) == 2
    assert rig.cluster.calls == []  # nothing was done yet
    assert rig.metrics.value(metrics.RECEIVED, "resolved") == 1


@pytest.mark.parametrize(("content", "answer"), [(b"{", "malformed"), (body(version="5"), "version")])
def test_what_is_no_call_is_answered_and_counted(rig: Rig, server: Running, content: bytes, answer: str) -> None:
    assert post(server, content).status_code == 400
    assert rig.metrics.value(metrics.CALLS, answer) == 1


def test_a_full_queue_says_come_again() -> None:
    rig = Rig(config=RestarterConfig(queue=3))
    with running(rig.webhook.service()) as server:
        assert post(server, body()).status_code == 202
        refused = post(server, body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert rig.metrics.value(metrics.CALLS, "full") == 1
    assert rig.metrics.value(metrics.QUEUE) == 2  # all of a call, or none


def test_a_body_over_a_mebibyte_is_not_read(rig: Rig, server: Running) -> None:
    with server.connect() as client:
        client.sendall(f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n".encode())
        assert received(client).startswith(b"HTTP/1.1 413 ")
    assert post(server, body(alerts=[ALERT] * 900)).status_code == 202


def test_a_body_that_trickles_in_is_cut_off(server: Running) -> None:
    with server.connect() as client:
        client.sendall(b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert received(client) == b""
    assert post(server, body()).status_code == 202


def statuses(rig: Rig, contents: list[bytes]) -> set[int]:
    """What the app answers to each, without a network."""
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
def test_ten_thousand_broken_bodies_and_no_500(chunk: int) -> None:
    chance = random.Random(100 + chunk)
    rig = Rig(config=RestarterConfig(queue=10_000))
    assert statuses(rig, [broken(chance) for _ in range(1000)]) == {202, 400}
    assert not rig.cluster.suspensions
    rig.turn()  # and whatever was accepted is looked at without a fault
    assert rig.metrics.value(metrics.REFUSED, "fault") == 0


def test_decisions_can_be_read(rig: Rig, server: Running) -> None:
    rig.send().go()
    found = server.get("/v1/decisions").json()
    assert [one["outcome"] for one in found] == ["restarted", "started"]
    assert found[0]["job"] == "Job.batch ml/train"
    assert [{"msg": "decision", **one} for one in reversed(found)] == list(
        map(json.loads, rig.audit.getvalue().splitlines())
    )


def test_a_person_closes_the_circuit(rig: Rig, server: Running) -> None:
    rig.webhook.fuse.trip("for a test")
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 1
    assert server.get("/v1/circuit/close").status_code == 405
    answer = post(server, b"", "/v1/circuit/close")
    assert (answer.status_code, answer.text) == (200, "closed\n")
    assert rig.metrics.value(metrics.CIRCUIT_OPEN) == 0
    assert rig.told == ["closed circuit-closed"]


@pytest.mark.parametrize("path", ["/v1/alerts", "/v1/circuit/close"])
@pytest.mark.parametrize("header", ["origin", "sec-fetch-site"])
def test_no_web_page_acts_with_the_password_that_a_browser_knows(
    rig: Rig, server: Running, path: str, header: str
) -> None:
    answer = httpx.post(server.url(path), content=body(), headers={header: "x"}, trust_env=False, timeout=PATIENCE)
    assert answer.status_code == 403
    assert rig.metrics.value(metrics.QUEUE) is None


def test_a_circuit_that_cannot_be_written_is_said_to_stay_open() -> None:
    rig = Rig(cluster=MemoryCluster(store=None))
    with running(rig.webhook.service()) as server:
        assert post(server, b"", "/v1/circuit/close").status_code == 503
