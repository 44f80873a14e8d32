"""Real gdb and real processes in every state of a job: an agent where possible, and never harm."""

import ast
import ctypes
from typing import Any

import pytest

from gpufrag.attach import gdb
from gpufrag.attach.target import functions
from gpufrag.errors import Unavailable
from pythons import INTERPRETERS
from traceable import traceable

pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(traceable()), reason=f"no attaching here: {traceable()}")]

ASKED = "print('gpufrag.agent' in sys.modules)\n"
LOOP = "print('ready', flush=True)\nimport select\nwhile not select.select([0], [], [], 0)[0]: {}\n"
"""Ends when its stdin does."""
IDLE = LOOP.format("time.sleep(0.02)")
GPU = "import torch\ntorch.machine.initialise()\n"


def test_process_without_gpu_gets_its_agent_later(begin, attach) -> None:
    victim = begin(IDLE + ASKED)
    assert attach(victim.pid) == (
        0,
        f"process {victim.pid} does not use a GPU yet (no torch, or no CUDA so far); its agent starts when it does\n",
    )
    assert victim.end() == "True\n"


def test_process_with_gpu_gets_one_agent(begin, attach, tmp_path) -> None:
    victim = begin(GPU + IDLE)
    code, line = attach(victim.pid)
    (socket,) = (tmp_path / "shared").glob("*.sock")
    assert code == 0
    assert line.startswith(f"process {victim.pid} has an agent now, at ")
    assert line.endswith(f"{socket.name}\n")
    code, line = attach(victim.pid)
    assert code == 1
    assert "already has an agent" in line
    assert victim.end() == ""


def test_agent_starts_with_the_first_gpu_use(begin, attach, tmp_path) -> None:
    use = GPU + "agent = sys.modules['gpufrag.agent']\nwhile agent.latest() is None: time.sleep(0.01)\n"
    victim = begin(IDLE + use)
    assert attach(victim.pid)[0] == 0
    assert victim.end() == ""
    assert len(list((tmp_path / "shared").glob("*.json"))) == 1


WAITS = {
    "signals": "signal.pause()",
    "sleep": "time.sleep(0.05)",
    "select": "select.select([], [], [], 0.05)",
    "poll": "select.poll().poll(50)",
    "epoll": "select.epoll().poll(0.05)",
    "lock": "lock.acquire(timeout=0.05)",
    "pipe": "os.read(pipe, 1)",
    "socket": "first.recv(1)",
    "child": "os.waitpid(os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '0.05'), 0)",
}
FED = """
import select, signal, socket, threading
signal.signal(signal.SIGALRM, lambda number, frame: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
(pipe, writing), (first, second), lock = os.pipe(), socket.socketpair(), threading.Lock()
lock.acquire()
def feed():
    while True: time.sleep(0.05); second.send(b"x"); os.write(writing, b"x")
threading.Thread(target=feed, daemon=True).start()
"""


@pytest.mark.parametrize("kind", WAITS)
def test_interrupted_system_call_continues(begin, attach, kind: str) -> None:
    """A stopped thread's call must restart as the kernel does it, or the program sees an error."""
    still = "signal.setitimer(signal.ITIMER_REAL, 0)\n"  # at its end, Python would die of it
    victim = begin(FED + LOOP.format(WAITS[kind]) + still + ASKED)
    assert attach(victim.pid)[0] == 0
    assert victim.end() == "True\n"


SUM = """
def total(terms):
    found = 0.0
    for n in range(1, terms): found += 1.0 / n ** 1.5
    return found
"""


def test_computation_has_the_same_result(begin, attach) -> None:
    """The thread is stopped anywhere, its floating-point registers in use."""
    victim = begin(SUM + "results = set()\n" + LOOP.format("results.add(total(100_000))") + "print(results)")
    for _ in range(2):
        assert attach(victim.pid)[0] == 0
    alone: dict[str, Any] = {}
    exec(SUM, alone)
    assert victim.end() == f"{{{alone['total'](100_000)}}}\n"


BUSY = "import ctypes\nprint('ready', flush=True)\nctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)\n"
SLEEPING = "import select\nprint('ready', flush=True)\nselect.select([0], [], [])\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [(BUSY, "did not reach a safe point within 0.1 s"), (BUSY, "the request stays"), (SLEEPING, "main thread sleeps")],
)
def test_process_without_a_safe_point_answers_later(begin, attach, program: str, message: str) -> None:
    victim = begin(f"{program}None\n{ASKED}")
    code, line = attach(victim.pid, wait=0.1)
    assert (code, message in line) == (1, True)
    assert victim.end() == "True\n"


def test_process_about_to_end_ends_normally(begin, attach) -> None:
    program = "import atexit\n@atexit.register\ndef last():\n"
    victim = begin(program + "".join(f"    {line}\n" for line in IDLE.splitlines()))
    code, _ = attach(victim.pid)
    assert code == 0
    assert victim.end() == ""


def test_process_that_ends_meanwhile_is_one_line(begin, attach) -> None:
    victim = begin("print('ready', flush=True)\ntime.sleep(0.15)")
    code, line = attach(victim.pid, wait=0.5)
    assert line.startswith((f"gpufrag: process {victim.pid}", f"gpufrag: no process {victim.pid}", "process"))
    assert code in (0, 1)
    assert victim.end() == ""


RAISING = """
import select, signal
class Stop(TimeoutError): pass
raised, caught = [], []
def handler(number, frame):
    names = set()
    while frame:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    if {place!r} in names and not raised:
        raised.append(True)
        raise {kind}
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
print("ready", flush=True)
while True:
    try:
        while not select.select([0], [], [], 0.005)[0]: pass
        break
    except BaseException as error:
        caught.append(type(error).__name__)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(raised), *caught, 'gpufrag.agent' in sys.modules)
"""


@pytest.mark.parametrize("version", [version for version in INTERPRETERS if version != "3.14"])
@pytest.mark.parametrize(("place", "kind"), [("_load", "Stop"), ("start_agent", "SystemExit(3)")])
def test_exception_of_a_signal_handler_reaches_the_program(begin, attach, version: str, place: str, kind: str) -> None:
    """The handler interrupts the injected code, first while it loads and then while it imports the agent."""
    victim = begin(RAISING.format(place=place, kind=kind), python=INTERPRETERS[version])
    code, _ = attach(victim.pid, wait=2.0)
    assert code == 1
    code, line = attach(victim.pid)
    assert (code, "its agent starts when it does" in line) == (0, True)
    assert victim.end() == f"1 {kind.partition('(')[0]} True\n"


IMPORTING = "types.SimpleNamespace(__spec__=types.SimpleNamespace(_initializing=True))"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.modules['gpufrag'] = None", "could not start in it; the process continues without it (ModuleNotFoundEr"),
        (f"import types; sys.modules['torch.cuda'] = {IMPORTING}", "is importing torch right now"),
    ],
)
def test_failing_payload_leaves_the_program_alone(begin, attach, program: str, message: str) -> None:
    victim = begin(f"{program}\n{IDLE}")
    code, line = attach(victim.pid)
    assert (code, message in line) == (1, True)
    assert victim.end() == ""


def test_programs_names_are_unchanged(begin, attach) -> None:
    victim = begin("before = None\n" + IDLE + "print(sorted(vars()))")
    assert attach(victim.pid)[0] == 0
    names = victim.end()
    assert "before" in names
    assert {"code", "run", "json", "start_agent"} & set(ast.literal_eval(names)) == set()


def test_hanging_call_is_undone(begin) -> None:
    """pause() stands for an Py_AddPendingCall that waits for a lock for ever."""
    victim = begin("import math\n" + IDLE + "print(math.sqrt(2.0))")
    pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
    mmap = ctypes.cast(ctypes.CDLL(None).mmap, ctypes.c_void_p).value
    there = functions(victim.pid)
    hanging = there._replace(add_pending_call=there.mmap + pause - mmap)
    with pytest.raises(Unavailable, match="did not take the request and continues unchanged"):
        gdb.run(gdb.find(), victim.pid, hanging, "pass", timeout_s=3.0)
    assert victim.end() == f"{2**0.5}\n"
