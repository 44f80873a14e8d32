"""The client against servers of every kind: honest, silent, slow, dead and hostile."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufrag.wire import control_client as module
from gpufrag.wire.control_client import (
    AccessDenied,
    ControlError,
    Impostor,
    NoAnswer,
    NotListening,
    Rejected,
    ask,
    ask_all,
    listens,
)
from signal_handlers import handled
from unix_sockets import bind

PING = {"command": "ping"}
HONEST = b'{"ok": true, "pid": 7}\n'


@contextlib.contextmanager
def server(path: Path, *answers: bytes, keep_open: bool = False) -> Iterator[Path]:
    """Sends `answers` one by one to its only caller, then hangs up, unless `keep_open`."""
    done = threading.Event()

    def serve() -> None:
        caller, _ = listener.accept()
        with caller, contextlib.suppress(OSError):
            caller.recv(65536)
            for answer in answers:
                caller.sendall(answer)
            if keep_open:
                done.wait(20)

    with bind(path, 8) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            done.set()
            thread.join(20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host-1-2.sock"


@pytest.mark.parametrize("answers", [[HONEST], [HONEST[:5], HONEST[5:]], [HONEST[:-1]]])
def test_answer_is_returned(path: Path, answers: list[bytes]) -> None:
    with server(path, *answers):
        assert ask(path, PING) == {"ok": True, "pid": 7}


def test_answer_comes_at_a_path_of_any_length(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["long-name"] * 30)
    deep.mkdir(parents=True)
    with server(deep / "host-1-2.sock", HONEST) as path:
        assert ask(path, PING, pid=os.getpid())["pid"] == 7


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b'{"ok": false, "error": "not now"}\n', Rejected, "not now"),
        (b'{"refused": "conflict"}\n', Rejected, "None"),
        (b"nonsense\n", NoAnswer, "host-1-2.sock: its answer is not JSON"),
        (b"\xff\n", NoAnswer, "its answer is not JSON"),
        (b"[" * 60_000 + b"\n", NoAnswer, "its answer is not JSON"),
        (b"[1]\n", NoAnswer, "not a JSON object"),
        (b"", NoAnswer, "closed the connection without an answer"),
        (b"x" * 100_000, NoAnswer, "larger than 65536 bytes"),
    ],
)
def test_unusable_answer_is_an_error(path: Path, answer: bytes, error: type[ControlError], text: str) -> None:
    with server(path, answer), pytest.raises(error, match=text):
        ask(path, PING)


def test_large_request_is_sent_whole(path: Path) -> None:
    with server(path, HONEST, keep_open=True), pytest.raises(NoAnswer, match=r"no answer within 0\.05 s|larger"):
        ask(path, {"command": "x" * 5_000_000}, within_s=0.05, max_answer=3)


def test_dead_missing_and_linked_sockets_do_not_listen(tmp_path: Path) -> None:
    bind(tmp_path / "dead.sock").close()
    (tmp_path / "file.sock").touch()
    os.mkfifo(tmp_path / "pipe.sock")
    with server(tmp_path / "alive.sock", HONEST) as alive:
        (tmp_path / "link.sock").symlink_to(alive)
        names = ["dead.sock", "file.sock", "pipe.sock", "link.sock", "missing.sock", "file.sock/below.sock"]
        outcomes = ask_all([tmp_path / name for name in names], PING)
        assert [type(outcome) for outcome in outcomes.values()] == [NotListening] * len(names)
        assert [listens(tmp_path / name) for name in names] == [False] * len(names)
        assert ask(alive, PING)["pid"] == 7


def test_socket_that_denies_access_is_reported(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda self, address: 13)  # root may connect anywhere
    with server(path, HONEST):
        with pytest.raises(AccessDenied, match="Permission denied"):
            ask(path, PING)
        with pytest.raises(PermissionError):
            listens(path)
        monkeypatch.undo()
        ask(path, PING)


def test_socket_of_another_process_is_an_impostor(path: Path) -> None:
    with server(path, HONEST), pytest.raises(Impostor, match=f"{os.getpid()} listens"):
        ask(path, PING, pid=1)


def test_silent_sockets_delay_no_other(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        silent = [tmp_path / f"silent-{number}.sock" for number in range(8)]
        for path in silent:
            stack.enter_context(bind(path, 8))
        honest = stack.enter_context(server(tmp_path / "honest.sock", HONEST))
        drips = stack.enter_context(server(tmp_path / "drips.sock", b"{", keep_open=True))
        outcomes = ask_all([*silent, drips, honest], PING, within_s=0.3)
    assert outcomes[honest] == {"ok": True, "pid": 7}
    assert [str(outcomes[path]) for path in silent] == [f"{path.name}: no answer within 0.3 s" for path in silent]
    assert isinstance(outcomes[drips], NoAnswer)


def test_sockets_above_the_limit_are_all_asked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(server(tmp_path / f"{number}.sock", HONEST)) for number in range(7)]
        assert list(ask_all(paths, PING).values()) == [{"ok": True, "pid": 7}] * 7


def test_full_queue_is_tried_again(path: Path) -> None:
    with bind(path, 0) as listener, contextlib.ExitStack() as stack:
        while True:
            filler = stack.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            if filler.connect_ex(str(path)):
                break
        assert listens(path)
        with pytest.raises(NoAnswer, match="no answer within"):
            ask(path, PING, within_s=0.05)

        def serve() -> None:
            while True:
                caller, _ = listener.accept()
                with caller:
                    if caller.recv(1):
                        caller.sendall(HONEST)
                        return

        threading.Thread(target=serve, daemon=True).start()
        stack.close()
        assert ask(path, PING, within_s=20)["pid"] == 7


def test_no_descriptor_is_left_open(path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for answer in (HONEST, b"nonsense\n"):
        with server(path, answer), contextlib.suppress(ControlError):
            ask(path, PING)
        path.unlink()
    assert os.listdir("/proc/self/fd") == before


def test_hang_up_before_the_request_raises_no_signal(path: Path) -> None:
    """A program may have set SIGPIPE to its default, which ends it."""
    with handled(signal.SIGPIPE, signal.SIG_DFL), bind(path, 8) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(NoAnswer):
            ask(path, {"command": "x" * 5_000_000})
        thread.join(20)
