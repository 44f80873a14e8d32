"""Basic auth over a real server."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest

from running_server import Running, hello, running


@contextmanager
def guarding(folder: Path, hashed: Callable[[str], str]) -> Iterator[Running]:
    users = {"alice": hashed("secret"), "bøb": hashed("p:w").replace("$2b$", "$2y$")}
    config = folder / "web.yml"
    config.write_text("basic_auth_users:\n" + "".join(f"  {name}: '{value}'\n" for name, value in users.items()))
    with running(replace(hello(), open_paths=frozenset({"/-/healthy"})), config_file=config) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, hashed: Callable[[str], str]) -> Iterator[Running]:
    with guarding(tmp_path_factory.mktemp("web"), hashed) as server:
        yield server


@pytest.fixture
def forgetful(tmp_path: Path, hashed: Callable[[str], str]) -> Iterator[Running]:
    """One that nobody has asked yet."""
    with guarding(tmp_path, hashed) as server:
        yield server


def status(server: Running, *header: str) -> int:
    return int(server.get(headers=[("authorization", value) for value in header]).status_code)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_who_has_no_password_is_asked_for_one(guarded: Running) -> None:
    answer = guarded.get()
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Basic realm="gpufrag"')
    assert "hello" not in answer.text


@pytest.mark.parametrize(("user", "password"), [("alice", "secret"), ("bøb", "p:w")])
def test_the_right_password_is_let_in(guarded: Running, user: str, password: str) -> None:
    assert status(guarded, basic(user, password)) == 200


@pytest.mark.parametrize(
    "header",
    [
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("alice", "secret\0"),
        basic("nobody", "secret"),
        basic("", ""),
        basic("bøb", "secret"),
        basic("alice", "x" * 5000),
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"alice").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:secret").decode(),
        "Bearer " + base64.b64encode(b"alice:secret").decode(),
    ],
)
def test_all_else_is_kept_out(guarded: Running, header: str) -> None:
    assert status(guarded, header) == 401
    assert status(guarded, header) == 401  # as remembered too


def test_two_headers_are_no_header(guarded: Running) -> None:
    assert status(guarded, basic("alice", "secret"), basic("alice", "wrong")) == 401


def test_unknown_paths_and_odd_spellings_are_guarded_too(guarded: Running) -> None:
    for path in ("/nothing", "/metrics", "//-/healthy", "/-/healthy/", "/-/healthy/../", "/-/Healthy"):
        with guarded.connect() as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 401 "), path


def test_a_probe_needs_no_password(guarded: Running) -> None:
    assert guarded.get("/-/healthy").status_code == 200


def test_a_scraper_pays_for_bcrypt_once(forgetful: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[str] = []
    real = bcrypt.checkpw

    def counted(password: bytes, hashed: bytes) -> bool:
        checks.append(threading.current_thread().name)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    assert [status(forgetful, basic("alice", "secret")) for _ in range(3)] == [200] * 3
    assert checks == ["gpufrag-bcrypt"]  # and never on the event loop


def test_guessing_does_not_push_out_who_is_known(forgetful: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufrag.web.auth._REMEMBERED", 2)
    assert status(forgetful, basic("alice", "secret")) == 200
    assert {status(forgetful, basic("alice", str(guess))) for guess in range(5)} == {401}
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: pytest.fail("checked again"))
    assert status(forgetful, basic("alice", "secret")) == 200


def test_an_unknown_user_costs_as_much_as_a_known_one(forgetful: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[bytes] = []
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, hashed: bool(checks.append(hashed)) or True)
    assert status(forgetful, basic("nobody", "anything")) == 401
    assert len(checks) == 1
