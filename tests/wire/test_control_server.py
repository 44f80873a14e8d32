"""The control server against callers and neighbours of every kind."""

import contextlib
import json
import os
import signal
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
from helpers import wait_until
from signal_handlers import handled
from unix_sockets import bind, connect, short_path


def _refuse(request: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Unavailable("not now")


COMMANDS: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "echo": lambda request: {"text": request["text"]},
    "refuse": _refuse,
    "break": lambda request: {"never": 1 // 0},
}


@pytest.fixture
def errors() -> ErrorCounter:
    return ErrorCounter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host-1-2.sock"


@pytest.fixture
def serve(path: Path, errors: ErrorCounter) -> Iterator[Callable[..., Server]]:
    """Starts a server, with more commands if given; closed at the end."""
    servers = []

    def start(at: Path = path, **commands: Any) -> Server:
        servers.append(Server(at, {**COMMANDS, **commands}, errors))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def control(serve: Callable[..., Server]) -> Server:
    return serve()


def thread_of_server() -> threading.Thread:
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "gpufrag-control")
    return thread


def _ask(path: Path, *parts: bytes) -> dict[str, Any]:
    with connect(path) as caller, caller.makefile("rb") as answers:
        for part in parts:
            caller.sendall(part)
        answer: dict[str, Any] = json.loads(answers.readline() or b"{}")
        return answer


def _echo(path: Path) -> bool:
    return _ask(path, b'{"command": "echo", "text": "hello"}\n') == {"ok": True, "text": "hello"}


def test_command_is_answered(control: Server, path: Path) -> None:
    assert _echo(path)
    assert _ask(path, b'{"command": "ec', b'ho", "text": 1}', b"\n") == {"ok": True, "text": 1}


def test_gpufrag_error_is_the_answer(control: Server, path: Path) -> None:
    assert _ask(path, b'{"command": "refuse"}\n') == {"ok": False, "error": "not now"}


@pytest.mark.parametrize("line", [b'{"command": "nothing"}', b'{"command": ["echo"]}', b"{}", b"[]", b"7"])
def test_unknown_command_lists_the_commands(control: Server, path: Path, line: bytes) -> None:
    answer = _ask(path, line + b"\n")
    assert not answer["ok"]
    assert "break, echo, refuse" in answer["error"]


@pytest.mark.parametrize("line", [b"hello", b"\xff\xfe", b"[" * 4000, b"x" * 10_000])
def test_invalid_request_is_an_error(control: Server, path: Path, line: bytes) -> None:
    assert not _ask(path, line + b"\n")["ok"]
    assert _echo(path)


def test_bug_in_a_command_is_counted(control: Server, path: Path, errors: ErrorCounter) -> None:
    assert "ZeroDivisionError" in _ask(path, b'{"command": "break"}\n')["error"]
    assert _echo(path)
    assert errors.counts == {"control": 1}


def test_slow_and_leaving_callers_are_dropped(control: Server, path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "CALLER_TIMEOUT_S", 0.05)
    connect(path).close()
    with connect(path), connect(path) as slow:
        slow.sendall(b'{"comm')
        assert _echo(path)


def test_longest_silent_caller_is_dropped_and_others_are_served(control: Server, path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "CALLER_TIMEOUT_S", 60.0)
    with contextlib.ExitStack() as callers:
        first, *_ = [callers.enter_context(connect(path)) for _ in range(2 * module.MAX_CALLERS)]
        assert first.recv(1) == b""
        assert _echo(path)


def test_command_above_the_limit_is_refused(serve, path: Path) -> None:
    gate = threading.Barrier(module.MAX_COMMANDS + 1)

    def wait(request: Mapping[str, Any]) -> Mapping[str, Any]:
        gate.wait(20)
        return {}

    serve(wait=wait)
    with contextlib.ExitStack() as callers:
        waiting = [callers.enter_context(connect(path)) for _ in range(module.MAX_COMMANDS)]
        for caller in waiting:
            caller.sendall(b'{"command": "wait"}\n')
        while (answer := _ask(path, b'{"command": "echo", "text": 1}\n'))["ok"]:
            pass  # not all of them have begun
        assert "busy" in answer["error"]
        gate.wait(20)
        assert all(b'"ok": true' in caller.recv(100) for caller in waiting)


def test_hang_up_before_the_answer_is_no_error(control: Server, path: Path) -> None:
    for _ in range(20):
        with connect(path) as caller:
            caller.sendall(b'{"command": "echo", "text": "' + b"x" * 4000 + b'"}\n')
    assert _echo(path)


@pytest.mark.parametrize(
    ("folder", "expected"), [(0o700, 0o600), (0o755, 0o600), (0o770, 0o660), (0o777, 0o666), (0o1777, 0o600)]
)
def test_socket_has_its_mode_before_its_name(serve, path: Path, folder: int, expected: int, monkeypatch) -> None:
    """A chmod by the public name could hit what another user has put there."""
    replace, seen = os.replace, []

    def look(source: str, target: Path, src_dir_fd: int) -> None:
        seen.append(stat.S_IMODE(os.stat(source, dir_fd=src_dir_fd).st_mode))
        replace(source, target, src_dir_fd=src_dir_fd)

    monkeypatch.setattr(os, "replace", look)
    path.parent.chmod(folder)
    serve()
    assert [*seen, stat.S_IMODE(path.stat().st_mode)] == [expected, expected]


def test_stale_socket_is_replaced_and_removed(serve, path: Path) -> None:
    bind(path).close()  # left by a process that was killed
    control, thread = serve(), thread_of_server()
    assert _echo(path)
    assert list(path.parent.iterdir()) == [path]
    control.close()
    thread.join(20)
    assert not thread.is_alive()
    assert list(path.parent.iterdir()) == []


def test_removed_name_is_noticed(control: Server, path: Path) -> None:
    assert control.reachable
    path.unlink()
    assert not control.reachable


def test_name_taken_by_another_server_stays(serve, path: Path) -> None:
    first, _ = serve(), serve()
    first.close()
    assert _echo(path)


def test_long_path_is_served(serve, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["long-name"] * 20)
    deep.mkdir(parents=True)
    path = deep / f"{'h' * 60}-4194304-1764430000000.sock"
    serve(path)
    assert _echo(path)


def test_missing_folder_is_an_error(serve, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No such file"):
        serve(tmp_path / "none" / "a-1-2.sock")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("lay", [lambda at, victim: at.symlink_to(victim), lambda at, victim: os.mkdir(at, 0o755)])
def test_swapped_private_folder_is_refused(serve, path: Path, lay, monkeypatch) -> None:
    """Another member of a shared folder's group replaces the folder in which the socket is about to be bound."""
    path.parent.chmod(0o777)
    victim = path.with_name("victim")
    victim.mkdir(mode=0o755)
    (victim / "s").touch(mode=0o600)
    mkdir = os.mkdir

    def swap(folder: Path, mode: int = 0o777) -> None:
        mkdir(folder, mode)
        folder.rename(path.with_name("moved"))
        lay(folder, victim)

    monkeypatch.setattr(Path, "mkdir", lambda folder, mode=0o777: swap(folder, mode))
    with pytest.raises(OSError, match=r"Not a directory|replaced this folder"):
        serve()
    assert stat.S_IMODE((victim / "s").stat().st_mode) == 0o600
    assert not path.exists()


def test_answer_to_a_caller_that_left_raises_no_signal(serve, path: Path) -> None:
    """The program may have set SIGPIPE to its default action, which would end the job."""
    left, answered = threading.Event(), threading.Event()

    def slow(request: Mapping[str, Any]) -> Mapping[str, Any]:
        left.wait(20)
        answered.set()
        return {"filler": "x" * 1_000_000}

    serve(slow=slow)
    with handled(signal.SIGPIPE, signal.SIG_DFL):
        with connect(path) as caller:
            caller.sendall(b'{"command": "slow"}\n')
        left.set()
        assert answered.wait(20)
        for thread in threading.enumerate():
            if thread.name == "gpufrag-answer":
                thread.join(20)
        assert _echo(path)


def test_threads_of_the_server_block_signals(serve, path: Path) -> None:
    """A program that waits in sigwait blocks its signals only in its own threads."""
    masks = []
    serve(note=lambda request: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])) or {})
    assert _ask(path, b'{"command": "note"}\n')["ok"]
    status = Path(f"/proc/self/task/{thread_of_server().native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        assert number in masks[0]
        assert blocked >> (number - 1) & 1
    assert signal.SIGSEGV not in masks[0]  # faulthandler must still see it
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_closed_descriptors_are_left_to_the_program(serve, path: Path, errors: ErrorCounter) -> None:
    """A program that becomes a daemon closes all descriptors, and may get ours for its own file."""
    server, thread = serve(), thread_of_server()
    descriptor = server._socket.fileno()
    with path.with_name("own").open("w") as own:
        os.dup2(own.fileno(), descriptor)  # closes ours; stays open, so that nothing else gets the number
        assert not server.reachable
        server.close()
        os.fstat(descriptor)
    assert not path.exists()
    thread.join(20)
    assert not thread.is_alive()
    assert errors.counts == {}


def test_connection_of_the_program_with_the_listeners_number_is_left_to_it(serve, path: Path) -> None:
    """The thread waits on a socket whose descriptor the program closes, and uses for a listener of its own."""
    server, thread = serve(), thread_of_server()
    assert _echo(path)
    descriptor = server._socket.fileno()
    with bind(path.with_name("own"), 8) as own, connect(path.with_name("own")):
        os.dup2(own.fileno(), descriptor)  # closes ours; stays open, so that nothing else gets the number
        with socket.socket(socket.AF_UNIX) as waking, short_path(path) as address, contextlib.suppress(OSError):
            waking.connect(address)  # wakes the thread
        thread.join(20)
        own.settimeout(1)
        own.accept()[0].close()


def test_data_of_the_program_under_a_callers_number_is_left_to_it(serve, path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "CALLER_TIMEOUT_S", 1.0)
    server = serve()
    with connect(path) as silent:
        silent.sendall(b"{")
        wait_until(lambda: any(caller.received for caller in server._callers.values()))
        ((descriptor, _),) = server._callers.items()
        mine, other = socket.socketpair()
        with mine, other:
            os.dup2(mine.fileno(), descriptor)  # closes the server's
            other.sendall(b"the program's")
            silent.sendall(b"}")  # wakes the thread
            wait_until(lambda: not server._callers)
            mine.settimeout(1)
            assert mine.recv(100) == b"the program's"
