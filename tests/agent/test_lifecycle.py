"""The agent in real processes: started once, forked, spawned, replaced, ended in every way."""

import errno
import signal
import socket
from pathlib import Path

import pytest

from agent.programs import CUDA, SCRIPTED
from gpufrag.wire.sample import ProcessSample, decode

RUNNING = "['MainThread', 'gpufrag-control', 'gpufrag-sampler']\n"
WITHOUT = "['MainThread']\n"


def samples(folder: Path) -> list[ProcessSample]:
    return [decode(path.read_bytes()) for path in folder.glob("*.json")]


def answers(folder: Path) -> list[int]:
    """What a connection to each socket gives: 0 for a listener."""
    found = []
    for path in folder.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as caller:
            found.append(caller.connect_ex(str(path)))
    return found


def test_second_start_does_nothing(scripts, folder: Path) -> None:
    program = SCRIPTED + "agent.start(ScriptedSource()); gpufrag.start(); published(); print(threads())"
    assert scripts.run(program) == RUNNING
    assert len(samples(folder)) == 1


def test_stopped_agent_can_be_started_again(scripts) -> None:
    again = "agent.start(source); published(); print(threads())"
    assert scripts.run(f"{SCRIPTED}published(); gpufrag.stop(); print(threads()); {again}") == WITHOUT + RUNNING


def test_exit_leaves_a_last_sample_and_no_socket(scripts, folder: Path) -> None:
    scripts.run(SCRIPTED + "published(); source.ooms = 5")
    (sample,) = samples(folder)
    assert sample.devices[0].totals.counters.ooms == 5
    assert answers(folder) == []


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_sudden_exit_leaves_a_whole_file(scripts, folder: Path, end: str) -> None:
    scripts.end(SCRIPTED + f"published(); {end}")
    assert len(samples(folder)) == 1
    assert answers(folder) == [errno.ECONNREFUSED]


@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)]
)
def test_exit_is_as_without_agent(scripts, end: str, code: int) -> None:
    assert scripts.end(f"{SCRIPTED}published(); {end}") == (code, "", "")


def test_disabled_agent_does_nothing(scripts, folder: Path) -> None:
    assert scripts.run(SCRIPTED + "gpufrag.start(port=1); print(threads())", GPUFRAG_DISABLE="1") == WITHOUT
    assert not folder.exists()


FORK = f"""{SCRIPTED}
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one write: two processes print
published()
child = os.fork()
if child == 0:
    source.ooms = 99
    say(threads(), agent.latest(), source.on_step)
    sys.stdin.readline()
    sys.exit(0)  # runs what is registered for the end
say(child)
"""


def test_forked_child_has_no_agent(scripts, folder: Path) -> None:
    with scripts.start(FORK + "os.waitpid(child, 0); print(threads())") as process:
        out, err = process.communicate("\n", timeout=60)
    assert err == ""
    assert "['MainThread'] None None\n" in out
    assert RUNNING in out
    (sample,) = samples(folder)
    assert (sample.identity.pid, sample.devices[0].totals.counters.ooms) == (process.pid, 0)


def test_surviving_child_does_not_keep_the_socket_open(scripts, folder: Path) -> None:
    process = scripts.start(FORK + "os._exit(0)")
    for _ in range(2):  # the child's line and the parent's, in any order
        process.stdout.readline()
    assert process.wait(60) == 0
    assert answers(folder) == [errno.ECONNREFUSED]
    process.communicate("\n", timeout=60)


def test_forked_child_can_start_an_agent(scripts, folder: Path) -> None:
    program = FORK.replace("sys.stdin.readline()", "agent.start(ScriptedSource()); published()")
    scripts.run(program + "os.waitpid(child, 0)")
    assert len({sample.identity.pid for sample in samples(folder)}) == 2


def test_exec_takes_over_file_and_socket(scripts, folder: Path) -> None:
    again = "published()\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
    process = scripts.start(SCRIPTED + again + "print('ready', flush=True); sys.stdin.readline()")
    assert process.stdout.readline() == "ready\n"
    (sample,) = samples(folder)
    assert sample.identity.pid == process.pid
    assert answers(folder) == [0]
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


@pytest.mark.parametrize("times", [1, 2])
def test_initialisations_of_cuda_start_one_agent(scripts, folder: Path, times: int) -> None:
    begin = "gpufrag.start(); print(threads()); " + "machine.initialise(); " * times
    assert scripts.run(f"{CUDA}{begin}published(); print(threads())") == WITHOUT + RUNNING
    (sample,) = samples(folder)
    assert sample.identity.framework == "torch"


def test_child_that_initialises_cuda_has_an_agent(scripts, folder: Path) -> None:
    child = "gpufrag.start()\nif (child := os.fork()) == 0:\n    machine.initialise(); published(); sys.exit(0)\n"
    out = scripts.run(CUDA + child + "os.waitpid(child, 0); print(threads(), child)")
    (sample,) = samples(folder)
    assert out == f"['MainThread'] {sample.identity.pid}\n"


def test_agent_stopped_before_cuda_never_starts(scripts) -> None:
    assert scripts.run(CUDA + "gpufrag.start(); gpufrag.stop(); machine.initialise(); print(threads())") == WITHOUT


def test_invalid_setting_is_reported_and_harmless(scripts) -> None:
    program = CUDA + "agent.wait(); machine.initialise(); print(threads())"
    code, out, err = scripts.end(program, GPUFRAG_INTERVAL="soon")
    assert (code, out, err.count("\n")) == (0, WITHOUT, 1)
    assert "GPUFRAG_INTERVAL must be a number (got 'soon')" in err


def test_closed_descriptors_cause_no_traceback(scripts) -> None:
    code, out, err = scripts.end(SCRIPTED + "published(); os.closerange(3, 256); print('ran', flush=True)")
    assert (code, out) == (0, "ran\n")
    assert "Traceback" not in err


def test_file_size_limit_does_not_end_the_program(scripts) -> None:
    limited = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
published()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
source.fail(100 << 30)
agent.stop()
print(agent.latest(), signal.SIGXFSZ in signal.sigpending())
"""
    assert scripts.end(SCRIPTED + limited)[:2] == (0, "None False\n")
