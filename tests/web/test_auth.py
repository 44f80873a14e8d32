"""Passwords and tokens over a real server, and how guesses are slowed."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from gpufrag.web import auth
from gpufrag.web.auth import Passwords
from running_server import Running, hello, running


@contextmanager
def guarding(folder: Path, hashed: Callable[[str], str], **settings: int) -> Iterator[Running]:
    users = {"alice": hashed("secret"), "bøb": hashed("p:w").replace("$2b$", "$2y$")}
    config = folder / "web.yml"
    config.write_text("basic_auth_users:\n" + "".join(f"  {name}: '{value}'\n" for name, value in users.items()))
    with running(replace(hello(), open_paths=frozenset({"/-/healthy"})), config_file=config, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, hashed: Callable[[str], str]) -> Iterator[Running]:
    with guarding(tmp_path_factory.mktemp("web"), hashed) as server:
        yield server


@pytest.fixture
def fresh(tmp_path: Path, hashed: Callable[[str], str]) -> Iterator[Running]:
    """A server that has checked no password yet."""
    with guarding(tmp_path, hashed) as server:
        yield server


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "FIRST_PAUSE_S", 0.0)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that checked a password with bcrypt."""
    threads: list[str] = []
    real = bcrypt.checkpw

    def counted(password: bytes, hashed: bytes) -> bool:
        threads.append(threading.current_thread().name)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    return threads


def status(server: Running, *header: str) -> int:
    return int(server.get(headers=[("authorization", value) for value in header]).status_code)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_missing_password_is_requested(guarded: Running) -> None:
    answer = guarded.get()
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Basic realm="gpufrag"')
    assert "hello" not in answer.text


@pytest.mark.parametrize(("user", "password"), [("alice", "secret"), ("bøb", "p:w")])
def test_right_password_is_admitted(guarded: Running, user: str, password: str) -> None:
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
def test_wrong_credentials_are_refused_twice(guarded: Running, no_pause: None, header: str) -> None:
    assert [status(guarded, header), status(guarded, header)] == [401, 401]  # the second time from memory


def test_two_authorization_headers_are_refused(guarded: Running) -> None:
    assert status(guarded, basic("alice", "secret"), basic("alice", "wrong")) == 401


@pytest.mark.parametrize("path", ["/x", "/metrics", "//-/healthy", "/-/healthy/", "/-/healthy/../", "/-/Healthy"])
def test_unknown_path_needs_a_password(guarded: Running, path: str) -> None:
    assert guarded.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 401 ")


def test_probe_needs_no_password(guarded: Running) -> None:
    assert guarded.get("/-/healthy").status_code == 200


def test_scraper_waits_for_bcrypt_once(fresh: Running, checks: list[str]) -> None:
    assert [status(fresh, basic("alice", "secret")) for _ in range(3)] == [200] * 3
    assert checks == ["gpufrag-bcrypt"]  # not on the event loop


def test_unknown_user_costs_a_bcrypt_check_too(fresh: Running, checks: list[str]) -> None:
    assert status(fresh, basic("nobody", "secret")) == 401
    assert len(checks) == 1


def test_guesses_do_not_push_out_a_known_password(
    fresh: Running, no_pause: None, checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED", 2)
    assert status(fresh, basic("alice", "secret")) == 200
    assert {status(fresh, basic("alice", str(guess))) for guess in range(5)} == {401}
    checks.clear()
    assert status(fresh, basic("alice", "secret")) == 200
    assert checks == []


def test_guess_after_a_wrong_password_gets_429_without_bcrypt(fresh: Running, checks: list[str]) -> None:
    assert status(fresh, basic("alice", "secret")) == 200
    assert status(fresh, basic("alice", "wrong")) == 401
    refused = fresh.get(headers={"authorization": basic("alice", "wrong again")})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert len(checks) == 2
    assert status(fresh, basic("alice", "secret")) == 200  # the known password of the same address


def test_pause_doubles_until_the_right_password(hashed: Callable[[str], str], caplog: Any) -> None:
    now = 0.0
    passwords = Passwords({"alice": hashed("secret")}, lambda: now)

    async def main() -> None:
        nonlocal now
        pauses = []
        for guess in range(10):
            assert await passwords.admit("alice", b"%d" % guess, "10.0.0.1") is False
            pauses.append(await passwords.admit("alice", b"next", "10.0.0.1"))
            now += pauses[-1]
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
        assert await passwords.admit("alice", b"other", "10.0.0.2") is False
        assert await passwords.admit("alice", b"secret", "10.0.0.1") is True
        assert await passwords.admit("alice", b"again", "10.0.0.1") is False

    asyncio.run(main())
    assert [record.fields for record in caplog.records] == [{"address": "10.0.0.1", "count": 10}]


def test_pending_checks_are_bounded(hashed: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    release, started = threading.Event(), []
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: started.append(1) or not release.wait(10))
    passwords = Passwords({"alice": hashed("secret")})

    async def main() -> None:
        calls = [
            asyncio.create_task(passwords.admit("alice", b"%d" % n, f"10.0.0.{n}")) for n in range(auth.MAX_PENDING)
        ]
        await asyncio.sleep(0)
        assert await passwords.admit("alice", b"x", "10.0.0.1") == auth.FIRST_PAUSE_S  # one per address
        assert await passwords.admit("alice", b"x", "10.9.9.9") == auth.FIRST_PAUSE_S
        release.set()
        assert set(await asyncio.gather(*calls)) == {False}

    asyncio.run(main())
    assert len(started) == auth.MAX_PENDING


def test_addresses_are_forgotten_beyond_a_bound(hashed: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_ADDRESSES", 2)
    passwords = Passwords({"alice": hashed("secret")})

    async def main() -> None:
        for number in range(5):
            assert await passwords.admit("alice", b"%d" % number, f"10.0.0.{number}") is False
        assert await passwords.admit("alice", b"next", "10.0.0.0") is False  # forgotten
        assert await passwords.admit("alice", b"other", "10.0.0.4") is not False

    asyncio.run(main())


def test_guess_takes_no_request_slot(
    tmp_path: Path, hashed: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarding(tmp_path, hashed, max_requests=1) as server:
        assert status(server, basic("alice", "secret")) == 200
        release, started = threading.Event(), threading.Event()
        monkeypatch.setattr(bcrypt, "checkpw", lambda *_: started.set() or not release.wait(10))
        guess = threading.Thread(target=status, args=(server, basic("alice", "guess")))
        guess.start()
        assert started.wait(10)
        assert status(server, basic("alice", "secret")) == 200
        assert server.get("/-/healthy").status_code == 200
        release.set()
        guess.join(10)
