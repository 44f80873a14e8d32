"""TLS, and renewing its certificate while the server runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import wait_until
from running_server import Running, received

Write = Callable[..., Path]


def context(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def talk(server: Running, ours: ssl.SSLContext) -> bytes:
    """Return the whole answer to a request over TLS."""
    with server.connect() as plain, ours.wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return received(client)


@pytest.fixture
def web(write: Write, certificate: Any, tmp_path: Path) -> Path:
    """A web config file whose certificate is a copy in the test's folder."""
    shutil.copy(certificate.cert, tmp_path / "tls.crt")
    shutil.copy(certificate.key, tmp_path / "tls.key")
    return write("tls_server_config: {cert_file: tls.crt, key_file: tls.key}")


@pytest.fixture
def served(start: Any, web: Path) -> Running:
    server: Running = start(config_file=web)
    return server


@pytest.mark.parametrize(("least", "served"), [("TLS12", True), ("TLS13", False)])
def test_minimum_version_is_enforced(start: Any, write: Write, certificate: Any, least: str, served: bool) -> None:
    keys = f"cert_file: {certificate.cert}, key_file: {certificate.key}, min_version: {least}"
    server = start(config_file=write(f"tls_server_config: {{{keys}}}"))
    old = context(certificate.cert)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert _answers(server, old) is served


def test_plain_http_is_not_served(served: Running) -> None:
    assert b"hello" not in served.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def test_silent_handshake_ends_at_the_deadline(start: Any, web: Path) -> None:
    assert start(config_file=web, request_timeout=0.3).send(b"") == b""


def test_handshakes_count_as_connections(start: Any, web: Path, certificate: Any) -> None:
    server = start(config_file=web, max_connections=3, request_timeout=3600.0)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(10)]
        assert talk(server, context(certificate.cert)).startswith(b"HTTP/1.1 200 ")
        assert [received(client) for client in silent[:8]] == [b""] * 8  # closed: the last ones may still be waiting
        assert len(server.server.connections) <= 3
        server.stop()  # no handshake delays the end


@pytest.mark.parametrize("kind", ["RequireAndVerifyClientCert", "VerifyClientCertIfGiven"])
def test_client_certificate_is_required(
    start: Any, write: Write, certificate: Any, make_certificate: Any, kind: str
) -> None:
    known, stranger = make_certificate("known"), make_certificate("stranger")
    keys = f"cert_file: {certificate.cert}, key_file: {certificate.key}, client_ca_file: {known.cert}"
    server = start(config_file=write(f"tls_server_config: {{{keys}, client_auth_type: {kind}}}"))
    assert _with(server, certificate, known)
    assert not _with(server, certificate, stranger)
    assert _with(server, certificate, None) is (kind == "VerifyClientCertIfGiven")


def test_renewed_certificate_is_served_after_reload(served: Running, make_certificate: Any, tmp_path: Path) -> None:
    new = make_certificate("renewed")
    for source, name in ((new.cert, "tls.crt"), (new.key, "tls.key")):
        shutil.copy(source, tmp_path / f"{name}.new")
        os.replace(tmp_path / f"{name}.new", tmp_path / name)
    served.call(served.server.reload)
    wait_until(lambda: _answers(served, context(new.cert)))


def test_renewed_certificate_is_noticed(
    start: Any, write: Write, make_certificate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufrag.web.runner.WATCH_SECONDS", 0.05)
    first, second = make_certificate("first"), make_certificate("second")
    link = tmp_path / "now"  # Kubernetes switches a link to a new folder
    link.symlink_to(first.cert.parent)
    server = start(config_file=write("tls_server_config: {cert_file: now/tls.crt, key_file: now/tls.key}"))
    assert talk(server, context(first.cert))
    (tmp_path / "next").symlink_to(second.cert.parent)
    os.replace(tmp_path / "next", link)
    wait_until(lambda: _answers(server, context(second.cert)))


def test_broken_certificate_keeps_the_old_one(
    served: Running, certificate: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tls.key").write_text("broken")
    served.call(served.server.reload)
    wait_until(lambda: "reload failed; the old config stays in effect" in caplog.text)
    assert talk(served, context(certificate.cert)).startswith(b"HTTP/1.1 200 ")


def test_reload_that_removes_tls_is_logged(
    start: Any, write: Write, certificate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys = f"cert_file: {certificate.cert}, key_file: {certificate.key}"
    clients = f"client_auth_type: RequireAndVerifyClientCert, client_ca_file: {certificate.cert}"
    path = write(f"tls_server_config: {{{keys}, {clients}}}")
    server = start(config_file=path)
    for text, off in ((f"tls_server_config: {{{keys}}}", "client certificates"), ("", "TLS")):
        caplog.clear()
        path.write_text(text)
        server.call(server.server.reload)
        wait_until(lambda: "no longer sets a protection" in caplog.text)
        assert [record.fields["off"] for record in caplog.records if "off" in record.fields] == [off]


def test_connection_survives_the_renewal(served: Running, certificate: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ours = context(certificate.cert)
    with served.connect() as plain, ours.wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        served.call(served.server.reload)
        wait_until(lambda: "config reloaded" in caplog.text)
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200 " in received(client)


def _with(server: Running, authority: Any, own: Any) -> bool:
    """Return whether the server answers a client with the certificate `own`."""
    ours = context(authority.cert)
    if own:
        ours.load_cert_chain(own.cert, own.key)
    return _answers(server, ours)


def _answers(server: Running, ours: ssl.SSLContext) -> bool:
    try:
        return b"HTTP/1.1 200 " in talk(server, ours)
    except (ssl.SSLError, ConnectionError):
        return False
