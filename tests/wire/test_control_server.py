"""The control socket: proof of life and commands, against callers of every kind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpufrag.errors import Unavailable
from gpufrag.wire import control_server as module
from gpufrag.wire.control_server import ControlServer as Server
from gpufrag.wire.error_counter import ErrorCounter
from unix_sockets import connect


def _refuse(request: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Unavailable("not now")


COMMANDS: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "echo": lambda request: {"said": request["text"]},
    "refuse": _refuse,
    "break": lambda request: {"never": 1 // 0},
}


@pytest.fixture
def trouble() -> ErrorCounter:
    return ErrorCounter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host-1-2.sock"


@pytest.fixture
def control(path: Path, trouble: ErrorCounter) -> Iterator[Server]:
    control = Server(path, COMMANDS, trouble)
    yield control
    control.close()


def _ask(path: Path, *parts: bytes) -> dict[str, Any]:
    with connect(path) as caller, caller.makefile("rb") as answers:
        for part in parts:
            caller.sendall(part)
        answer: dict[str, Any] = json.loads(answers.readline() or b"{}")
        return answer


def _echo(path: Path) -> bool:
    return _ask(path, b'{"command": "echo", "text": "hello"}\n') == {"ok": True, "said": "hello"}


def test_a_command_is_answered(control: Server, path: Path) -> None:
    assert _echo(path)
    assert _ask(path, b'{"command": "ec', b'ho", "text": 1}', b"\n") == {"ok": True, "said": 1}


def test_a_refusal_is_told(control: Server, path: Path) -> None:
    assert _ask(path, b'{"command": "refuse"}\n') == {"ok": False, "error": "not now"}


@pytest.mark.parametrize("line", [b'{"command": "nothing"}', b'{"command": ["echo"]}', b"{}", b"[]", b"7"])
def test_an_unknown_command_is_answered_with_those_that_there_are(control: Server, path: Path, line: bytes) -> None:
    answer = _ask(path, line + b"\n")
    assert not answer["ok"]
    assert "break, echo, refuse" in answer["error"]


@pytest.mark.parametrize("line", [b"hello", b"\xff\xfe", b"[" * 4000, b"x" * 10_000])
def test_what_is_no_request_is_told_so_and_the_next_caller_is_heard(control: Server, path: Path, line: bytes) -> None:
    assert not _ask(path, line + b"\n")["ok"]
    assert _echo(path)


def test_a_fault_in_a_command_is_counted_and_the_next_caller_is_heard(
    control: Server, path: Path, trouble: ErrorCounter
) -> None:
    assert "ZeroDivisionError" in _ask(path, b'{"command": "break"}\n')["error"]
    assert _echo(path)
    assert trouble.counts == {"control": 1}


def test_callers_that_say_nothing_or_leave_do_no_harm(
    control: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLER_TIMEOUT_S", 0.05)
    connect(path).close()
    with connect(path), connect(path) as slow:
        slow.sendall(b'{"comm')
        assert _echo(path)


def test_silent_callers_keep_nobody_waiting(control: Server, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLER_TIMEOUT_S", 60.0)
    with contextlib.ExitStack() as silent:
        for _ in range(2 * module.MAX_CALLERS):
            silent.enter_context(connect(path))
        assert _echo(path)


def test_one_who_speaks_is_not_among_those_dropped_for_others(control: Server, path: Path) -> None:
    with contextlib.ExitStack() as callers:
        first = callers.enter_context(connect(path))
        for _ in range(module.MAX_CALLERS):
            callers.enter_context(connect(path))
        assert first.recv(1) == b""  # the one that was silent longest
        assert _echo(path)


def test_more_commands_than_may_run_at_once_are_told_to_come_again(path: Path, trouble: ErrorCounter) -> None:
    gate = threading.Barrier(module.MAX_COMMANDS + 1)

    def wait(request: Mapping[str, Any]) -> Mapping[str, Any]:
        gate.wait(20)
        return {}

    control = Server(path, {**COMMANDS, "wait": wait}, trouble)
    with contextlib.ExitStack() as callers:
        waiting = [callers.enter_context(connect(path)) for _ in range(module.MAX_COMMANDS)]
        for caller in waiting:
            caller.sendall(b'{"command": "wait"}\n')
        while (answer := _ask(path, b'{"command": "echo", "text": 1}\n"'))["ok"]:
            pass  # not all of them have begun
        assert "busy" in answer["error"]
        gate.wait(20)
        assert all(b'"ok": true' in caller.recv(100) for caller in waiting)
    control.close()


def test_one_who_hangs_up_before_the_answer_does_no_harm(control: Server, path: Path) -> None:
    for _ in range(20):
        with connect(path) as caller:
            caller.sendall(b'{"command": "echo", "text": "' + b"x" * 4000 + b'"}\n')
    assert _echo(path)


@pytest.mark.parametrize(
    ("folder", "expected"), [(0o700, 0o600), (0o755, 0o600), (0o770, 0o660), (0o777, 0o666), (0o1777, 0o600)]
)
def test_who_may_write_to_the_folder_may_ask(path: Path, trouble: ErrorCounter, folder: int, expected: int) -> None:
    path.parent.chmod(folder)
    control = Server(path, COMMANDS, trouble)
    assert stat.S_IMODE(path.stat().st_mode) == expected
    control.close()


def test_the_name_appears_only_once_somebody_listens(path: Path, trouble: ErrorCounter) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))  # left by a process that was killed
    stale.close()
    control = Server(path, COMMANDS, trouble)
    assert _echo(path)
    assert list(path.parent.iterdir()) == [path]
    control.close()
    assert list(path.parent.iterdir()) == []


def test_once_closed_nobody_listens_and_the_thread_ends(path: Path, trouble: ErrorCounter) -> None:
    control = Server(path, COMMANDS, trouble)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "gpufrag-control")
    control.close()
    thread.join(20)
    assert not thread.is_alive()
    with socket.socket(socket.AF_UNIX) as caller:
        assert caller.connect_ex(str(path)) == errno.ENOENT


def test_a_name_that_was_tidied_away_is_noticed(control: Server, path: Path) -> None:
    assert control.reachable
    path.unlink()
    assert not control.reachable


def test_a_name_that_somebody_else_has_taken_is_left_to_them(path: Path, trouble: ErrorCounter) -> None:
    first = Server(path, COMMANDS, trouble)
    second = Server(path, COMMANDS, trouble)
    first.close()
    assert _echo(path)
    second.close()


def test_a_path_that_is_too_long_for_a_socket_serves_too(tmp_path: Path, trouble: ErrorCounter) -> None:
    deep = tmp_path.joinpath(*["long-name"] * 20)
    deep.mkdir(parents=True)
    path = deep / f"{'h' * 60}-4194304-1764430000000.sock"
    control = Server(path, COMMANDS, trouble)
    assert _echo(path)
    control.close()


def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path, trouble: ErrorCounter) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No such file"):
        Server(tmp_path / "none" / "a-1-2.sock", COMMANDS, trouble)
    assert len(os.listdir("/proc/self/fd")) == before
