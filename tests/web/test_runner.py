"""Draining, reloading and the headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufrag.config.sidecar import WebSettings
from gpufrag.errors import UsageError
from gpufrag.web.runner import Reload
from helpers import wait_until
from running_server import Gate, Running, hello, received

Write = Callable[..., Path]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def protected(write: Write, hashed: Callable[[str], str]) -> Path:
    """A web config file with the user alice, whose password is old."""
    return write(f"basic_auth_users: {{alice: '{hashed('old')}'}}")


def test_running_request_is_finished_before_the_end(start: Any, gate: Gate) -> None:
    server = start(gate.service)
    with server.connect() as client:
        client.sendall(GET)
        gate.wait()
        server.call(server.server.end)
        gate.open.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_endless_request_is_cut_off(start: Any, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    server = start(gate.service, drain_timeout=0.2, request_timeout=3600)
    with server.connect() as client:
        client.sendall(GET)
        gate.wait()
        server.stop()
        assert not received(client).startswith(b"HTTP/1.1 200 ")
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == ["requests cut off"]


def test_waiting_connections_do_not_delay_the_end(start: Any) -> None:
    server = start(keep_alive=3600, request_timeout=3600, drain_timeout=3600)
    with server.connect() as idle, server.connect(), server.connect() as half:
        idle.sendall(GET)
        half.sendall(GET[:-2])
        assert idle.recv(1000).startswith(b"HTTP/1.1 200 ")
        server.stop()


def test_reload_replaces_users(start: Any, protected: Path, hashed: Callable[[str], str]) -> None:
    server = start(config_file=protected)
    assert server.get(auth=("alice", "old")).status_code == 200
    protected.write_text(f"basic_auth_users: {{alice: '{hashed('new')}'}}")
    server.call(server.server.reload)
    wait_until(lambda: server.get(auth=("alice", "new")).status_code == 200)
    assert server.get(auth=("alice", "old")).status_code == 401


@pytest.mark.parametrize("text", ["basic_auth_user: {}", "basic_auth_users: {alice: plain}", "["])
def test_bad_reload_keeps_the_old_users(start: Any, protected: Path, caplog: Any, text: str) -> None:
    server = start(config_file=protected)
    protected.write_text(text)
    server.call(server.server.reload)
    wait_until(lambda: "reload failed; the old config stays in effect" in caplog.text)
    assert server.get().status_code == 401
    assert server.get(auth=("alice", "old")).status_code == 200


@pytest.mark.parametrize(("host", "warnings"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_reload_that_removes_protection_is_logged(
    start: Any, protected: Path, caplog: pytest.LogCaptureFixture, host: str, warnings: int
) -> None:
    server = start(listen_address=f"{host}:0", config_file=protected)
    assert "everyone who can connect" not in caplog.text
    protected.write_text("")
    server.call(server.server.reload)
    wait_until(lambda: server.get().status_code == 200)
    (gone,) = [
        record for record in caplog.records if record.message == "the web config file no longer sets a protection"
    ]
    assert (gone.levelname, gone.fields) == ("WARNING", {"off": "basic auth", "file": protected})
    assert caplog.text.count("no password: everyone who can connect has access") == warnings


def test_reload_applies_new_settings(start: Any) -> None:
    applied: list[str] = []

    async def apply() -> None:
        applied.append("applied")

    settings = WebSettings(listen_address="127.0.0.1:0", max_header_size=10)
    server = start(replace(hello(), reload=lambda: Reload(settings, apply)))
    assert server.get().status_code == 200
    server.call(server.server.reload)
    wait_until(lambda: server.get().status_code == 431)
    assert applied == ["applied"]


def test_new_listen_address_needs_a_restart(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    wanted = iter(["127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:1"])

    async def apply() -> None:
        pass

    server = start(replace(hello(), reload=lambda: Reload(WebSettings(listen_address=next(wanted)), apply)))
    for reloads, warnings in ((1, 1), (2, 1), (3, 2)):
        server.call(server.server.reload)
        wait_until(lambda: caplog.text.count("config reloaded") == reloads)  # noqa: B023 (called in this round)
        assert caplog.text.count("a new listen address needs a restart") == warnings


def test_refused_config_keeps_the_old_one(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Reload:
        raise UsageError("gpufrag.yaml: web.prot is not a key")

    server = start(replace(hello(), reload=refuse))
    server.call(server.server.reload)
    wait_until(lambda: "reload failed; the old config stays in effect" in caplog.text)
    assert server.get().status_code == 200


def test_headers_are_added_to_every_answer(start: Any, write: Write) -> None:
    text = "http_server_config: {headers: {Strict-Transport-Security: max-age=60, X-Frame-Options: deny}}"
    server = start(config_file=write(text))
    for path in ("/", "/none"):
        assert server.get(path).headers["strict-transport-security"] == "max-age=60"


def test_server_open_to_everyone_is_logged(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    start(listen_address="127.0.0.1:0")
    assert "everyone who can connect" not in caplog.text
    start(listen_address="0.0.0.0:0")
    assert caplog.text.count("no password: everyone who can connect has access; set one with --web.config.file") == 1


def test_failing_background_task_does_not_end_the_server(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise RuntimeError("broken")

    server = start(replace(hello(), background=work))
    assert server.get().status_code == 200
    assert "background task failed" in caplog.text


def test_second_signal_ends_without_a_drain(start: Any, gate: Gate) -> None:
    server = start(gate.service, drain_timeout=600, request_timeout=3600)
    with server.connect() as client:
        client.sendall(GET)
        gate.wait()
        server.call(server.server.end)
        server.stop()


def test_background_task_ends_with_the_server(start: Any) -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    server: Running = start(replace(hello(), background=work))
    assert server.get().status_code == 200
    server.stop()
    assert ended == [True]
