"""gpufrag.start() and stop(), and metrics served by the process itself."""

import contextlib
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpufrag
from agent.programs import CUDA, SCRIPTED
from fake_source import ScriptedSource
from gpufrag import agent
from gpufrag.errors import Unavailable, UsageError
from gpufrag.metrics import in_process_server as serve_self


@pytest.fixture(autouse=True)
def _stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUFRAG_DIR", str(tmp_path))
    yield
    gpufrag.stop()


@pytest.fixture
def port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    return free


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_exported_names_are_sorted_and_exist() -> None:
    assert gpufrag.__all__ == sorted(gpufrag.__all__)
    assert all(hasattr(gpufrag, name) for name in gpufrag.__all__)


def test_import_loads_nothing_heavy(scripts) -> None:
    program = "import sys; before = set(sys.modules); import gpufrag; print(set(sys.modules) - before - {'__future__'})"
    assert scripts.run(program) == "{'gpufrag'}\n"


def test_start_without_gpu_starts_nothing() -> None:
    gpufrag.start()
    assert agent.latest() is None


def test_start_refuses_invalid_values() -> None:
    with pytest.raises(UsageError, match="interval must be"):
        gpufrag.start(interval=-1)


def test_process_serves_its_own_metrics(port: int, eventually) -> None:
    gpufrag.start(port=port)
    assert "gpufrag_build_info" in _scrape(port)
    agent.start(ScriptedSource(steps=False), interval=0.05, budget=1.0)
    eventually(lambda: 'at="timer"' in _scrape(port))
    assert "gpufrag_allocator_largest_allocatable_bytes" in _scrape(port)


def test_port_is_served_once_and_freed(port: int) -> None:
    gpufrag.start(port=port)
    gpufrag.start(port=port)
    gpufrag.stop()
    gpufrag.start(port=port)
    assert _scrape(port)


def test_local_rank_is_added_to_the_port(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with socket.create_server(("127.0.0.1", port)):  # the first rank's
        gpufrag.start(port=port)
        assert _scrape(port + 1)


def test_silent_scrapers_take_a_bounded_number_of_threads(port: int) -> None:
    gpufrag.start(port=port)
    with contextlib.ExitStack() as silent:
        for _ in range(serve_self.MAX_CONNECTIONS):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        with socket.create_connection(("127.0.0.1", port), timeout=20) as refused:
            assert refused.recv(1) == b""


LEAVES = """
import signal, socket, struct, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
import gpufrag
gpufrag.start(port=PORT)
for _ in range(20):
    caller = socket.create_connection(("127.0.0.1", PORT))
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
    caller.close()
    time.sleep(0.01)
time.sleep(0.3)
print("alive")
"""


def test_scraper_that_leaves_does_not_end_the_process(scripts, port: int) -> None:
    """In a program with the default action for SIGPIPE."""
    assert scripts.run(LEAVES.replace("PORT", str(port))) == "alive\n"


CLOSES = """
import os, socket, threading
import gpufrag
gpufrag.start(port=PORT)
os.closerange(3, 256)
own = [socket.create_server(("127.0.0.1", 0)) for _ in range(20)]
callers = [socket.create_connection(one.getsockname()) for one in own]
print([bool(one.accept()) for one in own].count(True), flush=True)
gpufrag.stop()
[thread.join(60) for thread in threading.enumerate() if thread.name.startswith("gpufrag")]
print([one.fileno() == os.dup(one.fileno()) for one in own].count(False))
"""


def test_descriptors_that_the_program_uses_again_are_left_alone(scripts, port: int) -> None:
    assert scripts.run(CLOSES.replace("PORT", str(port))) == "20\n20\n"


def test_threads_leave_signals_to_the_program(scripts, port: int) -> None:
    program = f"""
gpufrag.start(port={port})
published()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait([signal.SIGUSR1]).name)
"""
    unblock = "import signal\nsignal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])\n"
    assert scripts.run(unblock + SCRIPTED + program) == "SIGUSR1\n"


PRELOADS = """
gpufrag.start(port=PORT, interval=1000)
if (child := os.fork()) == 0:
    machine.initialise()
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
os.waitpid(child, 0)
"""


def test_forked_child_with_a_gpu_takes_over_the_port(scripts, port: int, eventually) -> None:
    """gunicorn --preload: the master starts, its workers use the GPU."""
    with scripts.start(CUDA + PRELOADS.replace("PORT", str(port))) as process:
        assert process.stdout.readline() == "ready\n"

        def served() -> bool:
            with contextlib.suppress(OSError):
                return "gpufrag_allocator_reserved_bytes" in _scrape(port)
            return False

        eventually(served)
        process.communicate("", timeout=60)
    assert process.returncode == 0


def test_port_in_use_is_one_line(port: int) -> None:
    in_use = pytest.raises(Unavailable, match=f"127.0.0.1:{port}: the port is in use")
    with socket.create_server(("127.0.0.1", port)), in_use:
        gpufrag.start(port=port)


@pytest.mark.parametrize(("number", "host"), [(70000, "127.0.0.1"), (0, "203.0.113.1"), (0, "no host")])
def test_unavailable_address_is_one_line(number: int, host: str) -> None:
    with pytest.raises(Unavailable, match=f"{host}:{number}: "):
        gpufrag.start(port=number, host=host)


def test_missing_prometheus_client_names_the_remedy(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(Unavailable, match="install prometheus_client, or run a sidecar"):
        gpufrag.start(port=port)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python >= 3.12, next to a thread
def test_forked_child_does_not_keep_the_port(port: int) -> None:
    gpufrag.start(port=port)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.read(read, 1)
        os._exit(0)
    gpufrag.stop()
    gpufrag.start(port=port)
    os.write(write, b"x")
    os.waitpid(child, 0)
    assert _scrape(port)


@pytest.mark.parametrize("arguments", [{}, {"interval": -1.0}, {"budget": 7.0}])
def test_disabled_start_ignores_its_values(arguments: dict[str, float], port: int, monkeypatch) -> None:
    monkeypatch.setenv("GPUFRAG_DISABLE", "1")
    monkeypatch.setenv("GPUFRAG_INTERVAL", "soon")
    gpufrag.start(port=port, **arguments)
    assert agent.latest() is None
    with socket.socket() as caller:
        assert caller.connect_ex(("127.0.0.1", port)) != 0
