"""`gpufrag healthcheck`: it asks where the sidecar was told to listen, and as it was told to."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gpufrag.cli import main
from gpufrag.commands import healthcheck
from gpufrag.errors import GpufragError, Unavailable
from running_server import hello, running


def proc(at: Path, *command: str) -> Path:
    """A /proc in which, beside others, one process was started so."""
    for pid, words in ((1, ["tini", "--"]), (7, [*command]), (9, ["gpufrag", "healthcheck"])):
        (at / str(pid)).mkdir()
        (at / str(pid) / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    (at / "meminfo").touch()
    return at


def check(at: Path, *arguments: str) -> int:
    return healthcheck.run(argparse.Namespace(pid=None), proc(at, "python", "/bin/gpufrag", "serve", *arguments))


def test_another_port_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(hello()) as server:
        assert check(tmp_path, "--host", "0.0.0.0", "--port", str(server.port)) == 0
        assert capsys.readouterr().out == f"0.0.0.0:{server.port}: healthy\n"


def test_the_config_file_is_looked_into(tmp_path: Path) -> None:
    with running(hello()) as server:
        config = tmp_path / "gpufrag.yaml"
        config.write_text(f"web: {{listen_address: ':{server.port}'}}")
        assert check(tmp_path, "--config", str(config)) == 0


@pytest.mark.parametrize("extra", ["", ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: {cert}"])
@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_it_speaks_tls_and_needs_no_certificate_of_its_own(
    tmp_path: Path, certificate: Any, extra: str, version: str
) -> None:
    web, cert = tmp_path / "web.yml", certificate.cert
    more = extra.format(cert=cert) + f", max_version: {version}"
    web.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {certificate.key}{more}}}")
    with running(hello(), config_file=web) as server:
        assert check(tmp_path, "--port", str(server.port), "--web.config.file", str(web)) == 0


def test_a_password_is_not_needed(tmp_path: Path) -> None:
    with running(hello()) as server:
        web = tmp_path / "web.yml"
        web.write_text(f"basic_auth_users: {{alice: $2b$04${'a' * 53}}}")
        assert check(tmp_path, "--port", str(server.port), "--web.config.file", str(web)) == 0


def test_nobody_there_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable, match=f"the sidecar at 127.0.0.1:{port} gives no answer"):
        check(tmp_path, "--port", str(port))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b"garbage\r\n\r\n", b""])
def test_a_bad_answer_is_told(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_once, args=(server, answer))
        thread.start()
        with pytest.raises(GpufragError, match="gives no answer"):
            check(tmp_path, "--port", str(server.getsockname()[1]))
        thread.join()


def _answer_once(server: socket.socket, answer: bytes) -> None:
    client, _ = server.accept()
    with client:
        client.recv(1000)
        client.sendall(answer)


def test_a_silent_server_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthcheck, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Unavailable, match="timed out"):
        check(tmp_path, "--port", str(server.getsockname()[1]))


def test_where_no_sidecar_runs_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["healthcheck", "--pid", str(os.getpid())]) == 1
    assert capsys.readouterr().err.startswith("gpufrag: no process here runs gpufrag serve")


def test_the_image_asks_it() -> None:
    text = (Path(__file__).parents[2] / "Dockerfile").read_text()
    assert 'CMD ["gpufrag", "healthcheck"]' in text
