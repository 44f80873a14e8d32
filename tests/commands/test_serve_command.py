"""`gpufrag serve` as a process: flags, signals, and errors in one line."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest

from fake_agents import FakeAgent
from helpers import wait_until
from serving import Serving

Serve = Callable[..., Serving]
UP = 'gpufrag_up{rank="0"} 1.0'


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path).start()
    yield agent
    agent.die()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_exit_code_0(serve: Serve, agent: FakeAgent, number: int) -> None:
    one = serve("--folder", agent.folder, "--port", 0)
    status, text = one.get("/metrics")
    assert (status, UP in text) == (200, True)
    assert one.end(number) == 0


def test_folder_is_read_from_the_environment(serve: Serve, agent: FakeAgent) -> None:
    assert UP in serve("--port", 0, GPUFRAG_DIR=str(agent.folder)).get("/metrics")[1]


def test_missing_folder_is_awaited(serve: Serve, tmp_path: Path) -> None:
    one = serve("--folder", tmp_path / "later", "--port", 0)
    assert one.get("/-/healthy") == (200, "ok\n")
    status, text = one.get("/-/ready")
    assert (status, text.startswith("waiting for ")) == (503, True)
    assert not (tmp_path / "later").exists()
    (tmp_path / "later").mkdir()
    wait_until(lambda: one.get("/-/ready")[0] == 200, patience=20)


def test_flags_replace_the_config(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "gpufrag.yaml"
    config.write_text(f"folder: {{path: {tmp_path}/a}}\nweb: {{listen_address: '127.0.0.2:0'}}")
    one = serve("--config", config, "--folder", tmp_path)
    one.wait_for("msg=listening")
    assert "address=127.0.0.2:" in one.log
    assert f"folder={tmp_path}\n" in one.log


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["--prot", "1"], 2, "unrecognized arguments: --prot 1"),
        (["--port", "x"], 2, "argument --port: 'x' is not a whole number from 0 to 65535"),
        (["--config", "none.yaml"], 1, "none.yaml: No such file or directory"),
        (["--web.config.file", "none.yml", "--port", "0"], 1, "none.yml: No such file or directory"),
        (["--control.token-file", "none", "--port", "0"], 1, "cannot read token file none: No such file or directory"),
        (
            ["--folder", "/dev/null", "--port", "0"],
            1,
            "/dev/null: not a folder; name one with --folder or $GPUFRAG_DIR",
        ),
        (["--host", "192.0.2.1", "--port", "0"], 1, "cannot listen on 192.0.2.1:0: cannot assign requested address"),
    ],
)
def test_wrong_argument_is_one_line(serve: Serve, arguments: list[str], code: int, problem: str) -> None:
    one = serve(*arguments, GPUFRAG_DIR="/")
    assert (one.ended(), one.log.count("\n")) == (code, 1)
    assert one.log.startswith("gpufrag: ")
    assert problem in one.log


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [("web: {prot: 1}", 2, 'unknown key "prot" in web'), ("web: [", 1, "not valid YAML: line 1")],
)
def test_bad_config_is_one_line(serve: Serve, tmp_path: Path, text: str, code: int, problem: str) -> None:
    config = tmp_path / "gpufrag.yaml"
    config.write_text(text)
    one = serve("--config", config)
    assert (one.ended(), one.log.count("\n")) == (code, 1)
    assert str(config) in one.log
    assert problem in one.log


def test_sighup_reloads_unless_the_config_is_bad(serve: Serve, agent: FakeAgent, tmp_path: Path) -> None:
    config = tmp_path / "gpufrag.yaml"
    config.write_text(f"folder: {{path: {tmp_path}/none}}")
    one = serve("--config", config, "--port", 0)
    assert "gpufrag_up{" not in one.get("/metrics")[1]
    for text, logged in (("pth: x", "reload failed; the old config"), (f"path: {tmp_path}", "config reloaded")):
        config.write_text(f"folder: {{{text}}}")
        one.process.send_signal(signal.SIGHUP)
        one.wait_for(logged)
    assert 'unknown key \\"pth\\" in folder' in one.log
    assert UP in one.get("/metrics")[1]


def test_no_secret_is_logged(serve: Serve, tmp_path: Path) -> None:
    web, hashed = tmp_path / "web.yml", bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()
    web.write_text(f"basic_auth_users: {{alice: '{hashed}'}}")
    one = serve("--folder", tmp_path, "--port", 0, "--web.config.file", web, "--log.level", "debug")
    assert one.get("/metrics")[0] == 401
    with socket.create_connection(("127.0.0.1", one.port)) as client:
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YWxpY2U6aHVudGVyMg==\r\nConnection: close\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    web.write_text("basic_auth_users: {alice: hunter2}")
    one.process.send_signal(signal.SIGHUP)
    one.wait_for("reload failed")
    one.end()
    for secret in ("hunter2", "YWxpY2U6aHVudGVyMg", hashed, hashed[-20:]):
        assert secret not in one.log


def test_every_log_line_has_the_same_format(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "host-1-1.json").write_text("{")
    (tmp_path / "a\nb level=error.json").touch()
    one = serve("--folder", tmp_path, "--port", 0)
    one.get("/metrics")
    one.end()
    assert len(one.log.splitlines()) >= 3
    for line in one.log.splitlines():
        assert line.startswith("time=20")
        assert " level=" in line
        assert " msg=" in line


def test_restart_loses_no_running_rank(serve: Serve, agent: FakeAgent) -> None:
    first = serve("--folder", agent.folder, "--port", 0)
    before = first.get("/metrics")[1]
    first.process.kill()
    after = serve("--folder", agent.folder, "--port", 0).get("/metrics")[1]
    ours = [line for line in before.splitlines() if 'rank="0"' in line]
    assert len(ours) > 50
    assert ours == [line for line in after.splitlines() if 'rank="0"' in line]
