"""Authentication of the webhook: tokens, users, certificates."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest

from gpufrag.errors import BadInput, Unavailable
from gpufrag.web.auth import TokenFile
from restarter.webhook_bodies import body
from restarter.worker_rig import Rig
from running_server import PATIENCE, Running, running

TOKEN = "an-honest-token-of-some-length"


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
def serve(rig):
    """Serve the rig's webhook; keyword arguments are `token` and WebSettings."""
    with contextlib.ExitStack() as stack:

        def start(token: Path | None = None, **settings: Any) -> Running:
            service = replace(rig.webhook.service(), token=TokenFile(token) if token else None)
            return stack.enter_context(running(service, **settings))

        yield start


def post(server: Running, content: bytes, path: str = "/v1/alerts", **arguments: Any) -> httpx.Response:
    return httpx.post(server.url(path), content=content, trust_env=False, timeout=PATIENCE, **arguments)


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
