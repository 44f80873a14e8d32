"""Without threads (a limit of the container, an interpreter that ends) the program continues."""

import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gpufrag
from fake_source import ScriptedSource
from gpufrag import agent
from gpufrag.agent import agent as agent_module
from gpufrag.agent import lifecycle
from gpufrag.agent.settings import AgentSettings
from gpufrag.checkpoint.participant import EXIT_CODE, end_process
from gpufrag.checkpoint.signals import SignalCheckpoint
from gpufrag.errors import Unavailable
from gpufrag.metrics import in_process_server as serve_self
from gpufrag.wire import control_server as control_module
from gpufrag.wire.control_server import ControlServer
from gpufrag.wire.error_counter import ErrorCounter
from signal_handlers import handled
from unix_sockets import connect


@pytest.fixture(autouse=True)
def _stopped(folder: Path) -> Iterator[None]:
    folder.mkdir()
    yield
    gpufrag.stop()


@contextmanager
def no_threads() -> Iterator[None]:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_agent_without_thread_leaves_nothing_behind(source: ScriptedSource) -> None:
    with no_threads(), pytest.raises(RuntimeError, match="new thread"):
        agent.start(source)
    assert not lifecycle.running()
    assert source.on_step is None
    agent.start(source)
    assert lifecycle.running()


def test_server_without_thread_is_an_error() -> None:
    with no_threads(), pytest.raises(Unavailable, match="can't start new thread; raise the limit"):
        gpufrag.start(port=0)
    gpufrag.start(port=0)


def _ask(path: Path) -> dict[str, object]:
    with connect(path) as caller, caller.makefile() as answers:
        caller.sendall(b'{"command": "ping"}\n')
        answer: dict[str, object] = json.loads(answers.readline())
    return answer


def test_caller_without_thread_gets_an_error(tmp_path: Path) -> None:
    control = ControlServer(tmp_path / "host-1-2.sock", {"ping": lambda request: {}}, ErrorCounter())
    try:
        with no_threads():
            answers = [_ask(control.path) for _ in range(control_module.MAX_COMMANDS + 1)]
        assert all("cannot start another thread" in str(answer["error"]) for answer in answers)
        assert _ask(control.path) == {"ok": True}
    finally:
        control.close()


def test_socket_without_thread_does_not_exist(tmp_path: Path) -> None:
    with no_threads(), pytest.raises(RuntimeError, match="new thread"):
        ControlServer(tmp_path / "host-1-2.sock", {}, ErrorCounter())
    assert list(tmp_path.glob("*host-1-2*")) == []


def test_sample_is_published_without_a_socket(source: ScriptedSource, folder: Path, caplog) -> None:
    one = agent_module.Agent(source, AgentSettings(folder=folder))
    with no_threads():
        one._turn()
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    assert "raise the limit of threads" in caplog.text
    one._turn(last=True)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".sock"]
    one._control.close()


def test_signal_without_thread_keeps_its_old_effect() -> None:
    seen: list[int] = []
    with handled(signal.SIGUSR1, lambda number, frame: seen.append(number)):
        SignalCheckpoint(timeout=1).install([signal.SIGUSR1])
        with no_threads():
            signal.raise_signal(signal.SIGUSR1)
    assert seen == [signal.SIGUSR1]


def test_saved_rank_without_thread_exits_with_its_code() -> None:
    with no_threads(), pytest.raises(SystemExit) as ended:
        end_process()
    assert ended.value.code == EXIT_CODE


def test_scraper_without_thread_is_refused() -> None:
    gpufrag.start(port=0)
    port = serve_self._serving.server.server_port
    with no_threads():
        for _ in range(serve_self.MAX_CONNECTIONS + 1):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as refused:
                assert refused.recv(1) == b""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b"gpufrag_build_info" in answer.read()


def test_signal_handler_may_stop_the_starting_agent(source: ScriptedSource) -> None:
    """One that waited for the lock would wait for the very code that it has interrupted."""
    watch = source.watch_steps
    source.watch_steps = lambda on_step: (signal.raise_signal(signal.SIGUSR1), watch(on_step))[1]
    with handled(signal.SIGUSR1, lambda number, frame: gpufrag.stop()):
        agent.start(source)
    assert lifecycle.running()
