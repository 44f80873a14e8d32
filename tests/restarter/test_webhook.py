"""The webhook: what it answers, that nothing blocks it, and who may call it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.errors import BadInput, Unavailable
from gpufrag.restarter import metrics
from gpufrag.restarter.alerts import MAX_BODY
from gpufrag.restarter.worker import AlertQueue
from gpufrag.web.auth import TokenFile
from restarter.memory_backend import MemoryBackend
from restarter.webhook_bodies import ALERT, CALL, body
from restarter.worker_rig import Rig
from running_server import PATIENCE, Running, received, running

TOKEN = "an-honest-token-of-some-length"


@pytest.fixture
def rig():
    return Rig()


def post(server: Running, content: bytes, path: str = "/v1/alerts", **arguments: Any) -> httpx.Response:
    return httpx.post(server.url(path), content=content, trust_env=False, timeout=PATIENCE, **arguments)


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


def status(rig: Rig, content: bytes) -> int:
    """Return what the app answers, without a network."""
    found = []

    async def send(message):
        found.append(message.get("status"))

    async def receive():
        return {"type": "http.request", "body": content, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/v1/alerts", "headers": [], "query_string": b""}
    asyncio.run(rig.webhook.service().app(scope, receive, send))
    return found[0]


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 10**40, "", "\x00", "\ud800", "x" * 5000, [], {}, [[]], {"a": {}}, "4", "firing",
    "2026-13-45T99:99:99Z", "9999-12-31T23:59:59+23:59", "0001-01-01T00:00:00-14:00",
)  # fmt: skip


ANYTHING = st.recursive(
    st.sampled_from(ODD) | st.text() | st.floats(allow_nan=False) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
CALLS = st.dictionaries(st.sampled_from(list(CALL)), ANYTHING)
ALERTS = st.dictionaries(st.sampled_from(list(ALERT)), ANYTHING)
BYTES = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=8)


@settings(max_examples=500)
@given(CALLS, ALERTS, BYTES)
def test_broken_body_never_causes_a_500(call, alert, changes):
    rig, content = Rig(), bytearray(body(**{"alerts": [{**ALERT, **alert}], **call}))
    for place, value in changes:
        content[place % len(content)] = value
    assert status(rig, bytes(content)) in (202, 400)
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
    assert post(server, body(), path, headers={header: "x"}).status_code == 403
    assert rig.metrics.value(metrics.QUEUE) is None


def test_circuit_that_cannot_be_stored_is_not_closed():
    rig = Rig(backend=MemoryBackend(circuit=None))
    with running(rig.webhook.service()) as server:
        assert post(server, b"", "/v1/circuit/close").status_code == 503


@pytest.fixture
def serve(rig):
    """Serve the rig's webhook; keyword arguments are `token` and WebSettings."""
    with contextlib.ExitStack() as stack:

        def start(token: Path | None = None, **settings: Any) -> Running:
            service = replace(rig.webhook.service(), token=TokenFile(token) if token else None)
            return stack.enter_context(running(service, **settings))

        yield start


def bearer(token: str) -> dict[str, dict[str, str]]:
    return {"headers": {"authorization": f"Bearer {token}"}}


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize("path", ["/", "/v1/alerts", "/v1/decisions", "/v1/circuit/close", "/none"])
def test_every_path_requires_authentication(serve, token, path):
    server = serve(token)
    for arguments in (
        {},
        bearer("wrong-token-of-the-same-length"),
        {"auth": ("user", TOKEN)},
        {"headers": {"authorization": "Bearer"}},
    ):
        assert post(server, body(), path, **arguments).status_code == 401
        assert server.get(path, **arguments).status_code == 401


def test_token_is_accepted(serve, token):
    assert post(serve(token), body(), **bearer(TOKEN)).status_code == 202


def test_token_is_replaced_without_a_restart(serve, token):
    server = serve(token)
    new = "another-token-of-some-length"
    token.write_text(f"{TOKEN}\n{new}\n")
    assert {post(server, body(), **bearer(one)).status_code for one in (TOKEN, new)} == {202}
    token.write_text(new)
    assert post(server, body(), **bearer(TOKEN)).status_code == 401
    token.unlink()
    assert post(server, body(), **bearer(new)).status_code == 401


def test_web_config_users_and_token_are_accepted(serve, token, tmp_path):
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users: {{am: '{hashed}'}}")
    server = serve(token, config_file=web)
    assert post(server, body(), auth=("am", "secret")).status_code == 202
    assert post(server, body(), auth=("am", "wrong")).status_code == 401
    assert post(server, body(), **bearer(TOKEN)).status_code == 202


def test_client_certificate_is_required(serve, tmp_path, certificate, make_certificate):
    client = make_certificate("alertmanager")
    keys = f"cert_file: {certificate.cert}, key_file: {certificate.key}, client_ca_file: {client.cert}"
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config: {{{keys}, client_auth_type: RequireAndVerifyClientCert}}")
    server = serve(config_file=web)
    context = ssl.create_default_context(cafile=str(certificate.cert))
    with pytest.raises(httpx.TransportError):
        httpx.post(server.url("/v1/alerts", "https"), content=body(), verify=context, trust_env=False, timeout=PATIENCE)
    context.load_cert_chain(client.cert, client.key)
    answer = httpx.post(server.url("/v1/alerts", "https"), content=body(), verify=context, trust_env=False)
    assert answer.status_code == 202


@pytest.mark.parametrize("text", ["", "\n\n", "short", f"{TOKEN}\nshort\n"])
def test_file_without_a_valid_token_is_an_error(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(BadInput, match="a token of at least 16 characters"):
        TokenFile(path).check()
    assert not TokenFile(path).admits(b"Bearer short")


def test_missing_token_file_is_an_error(tmp_path):
    with pytest.raises(Unavailable, match="token: No such file"):
        TokenFile(tmp_path / "token").check()
