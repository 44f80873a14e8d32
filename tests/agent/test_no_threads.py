"""Without threads (a limit of the container, an interpreter that ends) the program continues."""

from __future__ import annotations

import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
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
from unix_sockets import connect


@pytest.fixture(autouse=True)
def _stopped(folder: Path) -> Iterator[None]:
    folder.mkdir()
    yield
    gpufrag.stop()


@pytest.fixture
def no_threads() -> Iterator[pytest.MonkeyPatch]:
    """Undone by the test, once there are threads again."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        yield patch


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_agent_without_thread_leaves_nothing_behind(no_threads, source: ScriptedSource) -> None:
    with pytest.raises(RuntimeError, match="new thread"):
        agent.start(source)
    assert not lifecycle.running()
    assert source.on_step is None
    gpufrag.stop()
    no_threads.undo()
    agent.start(source)
    assert lifecycle.running()


def test_server_without_thread_is_an_error(no_threads) -> None:
    with pytest.raises(Unavailable, match="can't start new thread; raise the limit"):
        gpufrag.start(port=0)
    gpufrag.stop()
    no_threads.undo()
    gpufrag.start(port=0)


def _ask(path: Path) -> dict[str, object]:
    with connect(path) as caller, caller.makefile() as answers:
        caller.sendall(b'{"command": "ping"}\n')
        answer: dict[str, object] = json.loads(answers.readline())
    return answer


def test_caller_without_thread_gets_an_error(tmp_path: Path) -> None:
    control = ControlServer(tmp_path / "host-1-2.sock", {"ping": lambda request: {}}, ErrorCounter())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            answers = [_ask(control.path) for _ in range(control_module.MAX_COMMANDS + 1)]
        assert all("cannot start another thread" in str(answer["error"]) for answer in answers)
        assert _ask(control.path) == {"ok": True}
    finally:
        control.close()


def test_socket_without_thread_does_not_exist(no_threads, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="new thread"):
        ControlServer(tmp_path / "host-1-2.sock", {}, ErrorCounter())
    assert list(tmp_path.glob("*host-1-2*")) == []


def test_sample_is_published_without_a_socket(
    source: ScriptedSource, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = agent_module.Agent(source, AgentSettings(folder=folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        one._turn()
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    assert "raise the limit of threads" in caplog.text
    one._turn(last=True)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".sock"]
    assert one._control is not None
    one._control.close()


def test_signal_without_thread_keeps_its_old_effect() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        SignalCheckpoint(timeout=1).install([signal.SIGUSR1])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            signal.raise_signal(signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_saved_rank_without_thread_exits_with_its_code(no_threads) -> None:
    with pytest.raises(SystemExit) as ended:
        end_process()
    assert ended.value.code == EXIT_CODE


def test_scraper_without_thread_is_refused() -> None:
    gpufrag.start(port=0)
    assert serve_self._serving is not None
    port = serve_self._serving.server.server_port
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        for _ in range(serve_self.MAX_CONNECTIONS + 1):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as refused:
                assert refused.recv(1) == b""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b"gpufrag_build_info" in answer.read()


def test_signal_handler_may_stop_the_starting_agent(source: ScriptedSource) -> None:
    """One that waited for the lock would wait for the very code that it has interrupted."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: gpufrag.stop())
    source.watch_steps = _interrupting(source.watch_steps)  # type: ignore[method-assign]
    try:
        agent.start(source)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert lifecycle.running()


def _interrupting(watch: Callable[[Callable[[object], None]], bool]) -> Callable[[Callable[[object], None]], bool]:
    def watch_interrupted(on_step: Callable[[object], None]) -> bool:
        signal.raise_signal(signal.SIGUSR1)
        return watch(on_step)

    return watch_interrupted
