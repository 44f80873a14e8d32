"""The agent in real processes: started once, forked, spawned, replaced, ended in every way."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufrag.wire.sample import ProcessSample, decode

Eventually = Callable[[Callable[[], object]], None]

BEGIN = """
import os, sys, threading, time
import gpufrag
from gpufrag import agent
from fake_source import ScriptedSource
source = ScriptedSource()
agent.start(source, interval=0.05, budget=1.0)
def published():
    deadline = time.monotonic() + 20
    while agent.latest() is None and time.monotonic() < deadline: time.sleep(0.005)
def threads():
    return sorted(thread.name for thread in threading.enumerate())
"""


def _samples(folder: Path) -> list[ProcessSample]:
    return [decode(path.read_bytes()) for path in folder.glob("*.json")]


def _answers(folder: Path) -> list[int]:
    """What a connection to each socket gives: 0 for a listener."""
    found = []
    for path in folder.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as caller:
            found.append(caller.connect_ex(str(path)))
    return found


def test_second_start_does_nothing(scripts, folder: Path) -> None:
    program = BEGIN + "agent.start(ScriptedSource()); gpufrag.start(); published(); print(threads())"
    assert scripts.run(program) == "['MainThread', 'gpufrag-control', 'gpufrag-sampler']\n"
    assert len(_samples(folder)) == 1


def test_stopped_agent_can_be_started_again(scripts, folder: Path) -> None:
    again = "agent.start(source); published(); print(agent.latest() is not None)"
    program = f"{BEGIN}published(); gpufrag.stop(); print(threads()); {again}"
    assert scripts.run(program) == "['MainThread']\nTrue\n"


def test_exit_leaves_a_last_sample_and_no_socket(scripts, folder: Path) -> None:
    scripts.run(BEGIN + "published(); source.ooms = 5")
    (sample,) = _samples(folder)
    assert sample.devices[0].totals is not None
    assert sample.devices[0].totals.counters.ooms == 5
    assert _answers(folder) == []


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_sudden_exit_leaves_a_whole_file(scripts, folder: Path, end: str) -> None:
    process = scripts.start(BEGIN + f"published(); {end}")
    process.communicate(timeout=60)
    assert len(_samples(folder)) == 1
    assert _answers(folder) == [errno.ECONNREFUSED]


def test_exit_by_exception_is_unchanged(scripts, folder: Path) -> None:
    process = scripts.start(BEGIN + "published(); raise SystemExit(7)")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 7


def test_disabled_agent_does_nothing(scripts, folder: Path) -> None:
    program = BEGIN + "gpufrag.start(port=1); print(threads())"
    assert scripts.run(program, GPUFRAG_DISABLE="1") == "['MainThread']\n"
    assert not folder.exists()


FORK = (
    BEGIN
    + """
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one write: two processes speak
published()
child = os.fork()
if child == 0:
    source.ooms = 99
    say(threads(), agent.latest(), source.on_step)
    sys.stdin.readline()
    sys.exit(0)  # runs what is registered for the end
say(child)
"""
)


def test_forked_child_has_no_agent(scripts, folder: Path) -> None:
    with scripts.start(FORK + "os.waitpid(child, 0); print(threads())") as process:
        out, err = process.communicate("\n", timeout=60)
    assert err == ""
    assert "['MainThread'] None None\n" in out
    assert "['MainThread', 'gpufrag-control', 'gpufrag-sampler']\n" in out
    (sample,) = _samples(folder)
    assert (sample.identity.pid, sample.devices[0].totals.counters.ooms) == (process.pid, 0)


def test_surviving_child_does_not_keep_the_socket_open(scripts, folder: Path) -> None:
    process = scripts.start(FORK + "os._exit(0)")
    for _ in range(2):  # the child's line and the parent's, in any order
        process.stdout.readline()
    assert process.wait(60) == 0
    assert _answers(folder) == [errno.ECONNREFUSED]
    process.communicate("\n", timeout=60)


def test_forked_child_can_start_an_agent(scripts, folder: Path) -> None:
    program = FORK.replace("sys.stdin.readline()", "agent.start(ScriptedSource()); published()")
    scripts.run(program + "os.waitpid(child, 0)")
    assert len({sample.identity.pid for sample in _samples(folder)}) == 2


def test_exec_takes_over_file_and_socket(scripts, folder: Path, eventually: Eventually) -> None:
    again = "published()\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
    process = scripts.start(BEGIN + again + "print('ready', flush=True); sys.stdin.readline()")
    assert process.stdout.readline() == "ready\n"
    (sample,) = _samples(folder)
    assert sample.identity.pid == process.pid
    assert _answers(folder) == [0]
    process.communicate("\n", timeout=60)


SPAWN = """
import multiprocessing, threading
import gpufrag
def child(queue):
    queue.put([thread.name for thread in threading.enumerate() if "gpufrag" in thread.name])
if __name__ == "__main__":
    gpufrag.start()
    context = multiprocessing.get_context("{method}")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(), [thread.name for thread in threading.enumerate()])
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_without_cuda_has_no_thread(scripts, folder: Path, method: str) -> None:
    assert scripts.run(SPAWN.replace("{method}", method)) == "[] ['MainThread']\n"
    assert not folder.exists()


def test_start_without_torch_imports_almost_nothing(scripts) -> None:
    program = """
import sys
before = set(sys.modules)
from gpufrag import agent
agent.wait()
print(sorted(set(sys.modules) - before - {"__future__"}))
"""
    assert scripts.run(program) == "['gpufrag', 'gpufrag.agent', 'gpufrag.agent.arrival']\n"


CUDA = """
import os, sys, threading
from fake_torch import Machine, torch_of
machine = Machine(initialised=False)
sys.modules["torch"] = torch = torch_of(machine)
sys.modules["torch.cuda"] = torch.cuda
import gpufrag
def threads():
    return sorted(thread.name for thread in threading.enumerate())
def published():
    import time
    from gpufrag import agent
    deadline = time.monotonic() + 20
    while agent.latest() is None and time.monotonic() < deadline: time.sleep(0.005)
"""


def test_agent_starts_at_cuda_initialisation(scripts, folder: Path) -> None:
    program = CUDA + "gpufrag.start(); print(threads()); machine.initialise(); published(); print(threads())"
    assert scripts.run(program) == "['MainThread']\n['MainThread', 'gpufrag-control', 'gpufrag-sampler']\n"
    (sample,) = _samples(folder)
    assert sample.identity.framework == "torch"


def test_two_initialisations_start_one_agent(scripts, folder: Path) -> None:
    program = CUDA + "gpufrag.start(); machine.initialise(); machine.initialise(); published(); print(threads())"
    assert scripts.run(program) == "['MainThread', 'gpufrag-control', 'gpufrag-sampler']\n"


def test_child_that_initialises_cuda_has_an_agent(scripts, folder: Path) -> None:
    child = "gpufrag.start()\nif (child := os.fork()) == 0:\n    machine.initialise(); published(); sys.exit(0)\n"
    out = scripts.run(CUDA + child + "os.waitpid(child, 0); print(threads(), child)")
    (sample,) = _samples(folder)
    assert out == f"['MainThread'] {sample.identity.pid}\n"


def test_agent_stopped_before_cuda_never_starts(scripts, folder: Path) -> None:
    program = CUDA + "gpufrag.start(); gpufrag.stop(); machine.initialise(); print(threads())"
    assert scripts.run(program) == "['MainThread']\n"


def test_invalid_setting_is_reported_and_harmless(scripts, folder: Path) -> None:
    program = CUDA + "from gpufrag import agent; agent.wait(); machine.initialise(); print(threads())"
    with scripts.start(program, GPUFRAG_INTERVAL="soon") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "['MainThread']\n")
    assert "GPUFRAG_INTERVAL must be a number (got 'soon')" in err
    assert err.count("\n") == 1


def test_file_is_whole_whenever_the_process_is_killed(scripts, folder: Path, eventually: Eventually) -> None:
    """And a reader always finds a sample or none. The sidecar's own tests do this five hundred times."""
    for _ in range(5):
        process = scripts.start(BEGIN + "threading.Event().wait()")
        eventually(lambda process=process: any(s.identity.pid == process.pid for s in _samples(folder)))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert len(_samples(folder)) == 5


def test_signal_ends_the_process_as_without_agent(scripts, folder: Path, eventually: Eventually) -> None:
    process = scripts.start(BEGIN + "published(); print('ready', flush=True); threading.Event().wait()")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGTERM


CLOSES = """
import os
from fake_source import ScriptedSource
from gpufrag import agent
agent.start(ScriptedSource())
while agent.latest() is None: pass
os.closerange(3, 256)
print("ran", flush=True)
"""


def test_program_that_closes_our_descriptors_exits_without_traceback(scripts, folder: Path) -> None:
    with scripts.start(CLOSES) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ran\n")
    assert "Traceback" not in err


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
from fake_source import ScriptedSource
from gpufrag import agent
source = ScriptedSource()
agent.start(source)
while agent.latest() is None: pass
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
source.fail(100 << 30)
agent.stop()
print(agent.latest(), signal.SIGXFSZ in signal.sigpending())
"""


def test_limit_of_file_sizes_does_not_end_the_program(scripts, folder: Path) -> None:
    with scripts.start(LIMITED) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "None False\n"), err
