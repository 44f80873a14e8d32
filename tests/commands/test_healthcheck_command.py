"""`gpufrag healthcheck`: queries the sidecar at the address in its command line and config."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gpufrag.commands import healthcheck
from gpufrag.errors import GpufragError, Unavailable
from running_server import hello, running


def add_process(proc: Path, pid: int, *command: str, net: str = "net:[1]") -> None:
    (proc / str(pid) / "ns").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes("".join(f"{word}\0" for word in command).encode())
    (proc / str(pid) / "ns/net").symlink_to(net)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with other processes and a file."""
    folder = tmp_path / "proc"
    add_process(folder, 1, "tini", "--")
    add_process(folder, 9, "gpufrag", "healthcheck")
    (folder / "self").symlink_to("9")
    (folder / "meminfo").touch()
    return folder


def run(proc: Path, pid: int | None = None) -> int:
    return healthcheck.run(argparse.Namespace(pid=pid), proc)


def check(proc: Path, *arguments: str) -> int:
    add_process(proc, 7, "python", "/bin/gpufrag", "serve", *arguments)
    return run(proc)


def test_sidecar_is_asked_at_its_own_port(proc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(hello()) as server:
        assert check(proc, "--host", "0.0.0.0", "--port", str(server.port)) == 0
        assert capsys.readouterr().out == f"0.0.0.0:{server.port}: healthy\n"
        assert run(proc, 7) == 0


def test_address_is_read_from_the_config(proc: Path, tmp_path: Path) -> None:
    with running(hello()) as server:
        config = tmp_path / "gpufrag.yaml"
        config.write_text(f"web: {{listen_address: ':{server.port}'}}")
        assert check(proc, "--config", str(config)) == 0


@pytest.mark.parametrize("extra", ["", ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: {cert}"])
@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_tls_needs_no_client_certificate(
    proc: Path, tmp_path: Path, certificate: Any, extra: str, version: str
) -> None:
    web, cert = tmp_path / "web.yml", certificate.cert
    more = extra.format(cert=cert) + f", max_version: {version}"
    web.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {certificate.key}{more}}}")
    with running(hello(), config_file=web) as server:
        assert check(proc, "--port", str(server.port), "--web.config.file", str(web)) == 0


def test_no_password_is_needed(proc: Path, tmp_path: Path) -> None:
    with running(hello()) as server:
        web = tmp_path / "web.yml"
        web.write_text(f"basic_auth_users: {{alice: $2b$04${'a' * 53}}}")
        assert check(proc, "--port", str(server.port), "--web.config.file", str(web)) == 0


def test_closed_port_is_reported(proc: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable, match=f"cannot reach http://127.0.0.1:{port}/-/healthy: connection refused"):
        check(proc, "--port", str(port))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b"garbage\r\n\r\n", b""])
def test_bad_answer_is_reported(proc: Path, answer: bytes) -> None:
    def answer_once() -> None:
        client, _ = server.accept()
        with client:
            client.recv(1000)
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_once)
        thread.start()
        with pytest.raises(GpufragError, match=r"status 500|cannot reach"):
            check(proc, "--port", str(server.getsockname()[1]))
        thread.join()


def test_silent_server_is_given_up(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthcheck, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Unavailable, match="no complete answer"):
        check(proc, "--port", str(server.getsockname()[1]))


@pytest.mark.parametrize(
    ("pid", "problem"),
    [
        (None, "no process of this user and network namespace runs gpufrag serve"),
        (1, r"process 1 is not gpufrag serve \(it runs tini --\); omit --pid"),
        (4711, r"process 4711 is not gpufrag serve \(there is no such process"),
    ],
)
def test_missing_sidecar_is_reported(proc: Path, pid: int | None, problem: str) -> None:
    with pytest.raises(Unavailable, match=problem):
        run(proc, pid)


@pytest.mark.parametrize(("net", "uid"), [("net:[2]", os.geteuid()), ("net:[1]", 4711)], ids=["container", "user"])
def test_sidecar_of_another_container_or_user_is_not_ours(proc: Path, monkeypatch: Any, net: str, uid: int) -> None:
    add_process(proc, 5, "gpufrag", "serve", net=net)
    monkeypatch.setattr("os.geteuid", lambda: uid)
    with pytest.raises(Unavailable, match="no process of this user and network namespace"):
        run(proc)


def test_several_sidecars_need_a_choice(proc: Path) -> None:
    add_process(proc, 5, "gpufrag", "serve", "--port", "1")
    with pytest.raises(Unavailable, match=r"several processes run gpufrag serve \(pids 5, 7\)"):
        check(proc)


def test_image_runs_the_health_check() -> None:
    text = (Path(__file__).parents[2] / "Dockerfile").read_text()
    assert 'CMD ["gpufrag", "healthcheck"]' in text
