"""Checkpoints on a signal in real processes: a single rank, and two ranks that agree."""

from __future__ import annotations

import signal

import pytest

PATIENCE = 60.0
TRAIN = """
import signal, sys, time
import gpufrag
from gpufrag.errors import UsageError

def own(number, frame):
    print("own handler", flush=True)
    sys.exit(3)

BEFORE
SAVE
gpufrag.checkpoint_on_signal(timeout=30)
for step in range(1, 100_000):
    time.sleep(0.005)
    gpufrag.step_ended(step)
    if step == 3:
        print("trains", flush=True)
"""
SAVE = 'gpufrag.on_checkpoint(lambda request: print("saved", request.step, flush=True))'
OWN = "signal.signal(signal.SIGTERM, own)"


def _program(before: str = "", save: str = SAVE) -> str:
    return TRAIN.replace("BEFORE", before).replace("SAVE", save)


def _run(scripts, program: str, number: int, **environment: str) -> tuple[int, list[str], str]:
    with scripts.start(program, **environment) as process:
        assert process.stdout.readline() == "trains\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out.splitlines(), err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_single_rank_saves_and_ends_without_an_agent(scripts, number):
    code, lines, err = _run(scripts, _program(), number)
    assert (code, err) == (42, "")
    assert len(lines) == 1
    assert lines[0].startswith("saved ")


def test_default_action_runs_if_nothing_can_be_saved(scripts):
    code, lines, _ = _run(scripts, _program(save=""), signal.SIGTERM)
    assert (code, lines) == (-signal.SIGTERM, [])


RAISING_LOG = """
import logging
class Raising(logging.Handler):
    def emit(self, record):
        raise SystemExit("log handler")
logging.getLogger("gpufrag").addHandler(Raising())
"""
BROKEN = "from gpufrag.checkpoint import signals; signals.identify = lambda: 1 / 0"


RAISES = "gpufrag.on_checkpoint(lambda request: 1 / 0)"


@pytest.mark.parametrize(
    ("before", "save", "message"),
    [
        ("", "", "no checkpoint on SIGTERM: the program has not called gpufrag.on_checkpoint"),
        ("", RAISES, "ZeroDivisionError"),
        (RAISING_LOG, RAISES, ""),
        (RAISING_LOG, "", ""),
        (BROKEN, "", ""),
    ],
    ids=["no callback", "callback raises", "callback and log raise", "log raises", "our code raises"],
)
def test_own_handler_runs_if_nothing_is_saved(scripts, before, save, message):
    code, lines, err = _run(scripts, _program(f"{before}\n{OWN}", save), signal.SIGTERM)
    assert (code, lines) == (3, ["own handler"])
    assert message in err


def test_exception_of_a_signal_handler_leaves_the_callback(scripts):
    """A handler may raise an Exception, which must not pass for an error of the callback."""
    handler = "signal.signal(signal.SIGUSR2, lambda number, frame: 1 / 0)"
    save = "gpufrag.on_checkpoint(lambda request: signal.raise_signal(signal.SIGUSR2))"
    code, _, err = _run(scripts, _program(f"{handler}\n{OWN}", save), signal.SIGTERM)
    assert code in (1, 3)  # the error ends the program, or the signal comes first
    assert "training continues" not in err


def test_ranks_on_another_host_fail_the_checkpoint(scripts, folder):
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "16"}
    code, lines, err = _run(scripts, _program(OWN), signal.SIGTERM, **place)
    assert (code, lines) == (3, ["own handler"])
    assert "no rank was found" in err  # it has no agent here


def test_two_ranks_save_at_one_step(scripts, folder, eventually):
    agent = "from fake_source import ScriptedSource; gpufrag.agent.start(source=ScriptedSource(steps=False))"
    program = _program("import gpufrag.agent; " + agent)
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    ranks = [scripts.start(program, **place) for place in places]
    assert [rank.stdout.readline() for rank in ranks] == ["trains\n"] * 2
    eventually(lambda: len(list(folder.glob("*.sock"))) == 2)
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    outputs = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [42, 42], outputs
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][0].startswith("saved ")


UNDER_WAY = """
import threading
from gpufrag.checkpoint import participant as checkpoint
from gpufrag.agent.identity import identify

def ask(command, **fields):
    wanted = {"id": "restart-1", "patience": 60, "hold": 60, "step": 100, **fields}
    return checkpoint.this_process().command(command, wanted, identify())
"""
SAVED_FOR_A_RESTART = """
def lead():
    ask("prepare"), ask("at"), ask("confirm")
    while ask("status")["state"] != "saved":
        time.sleep(0.01)
    print("waits", flush=True)
threading.Thread(target=lead, daemon=True).start()
"""
ENDS = "import atexit; atexit.register(print, 'cleaned up')"
RANKS = [{}, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}]


@pytest.mark.parametrize("place", RANKS, ids=["alone", "rank 0", "rank 1"])
def test_rank_saved_for_a_restart_ends_at_once(scripts, folder, place):
    program = _program(UNDER_WAY + ENDS, SAVE + SAVED_FOR_A_RESTART)
    with scripts.start(program, **place) as process:
        while process.stdout.readline() != "waits\n":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (42, "cleaned up\n", "")


def test_cancelled_checkpoint_is_followed_by_the_signals_own(scripts):
    calls_off = "ask('prepare'); threading.Timer(1.0, ask, ['cancel']).start()"
    code, lines, err = _run(scripts, _program(UNDER_WAY, SAVE + "\n" + calls_off), signal.SIGTERM)
    assert (code, len(lines), err) == (42, 1, "")


def test_hanging_checkpoint_ends_with_the_own_handler(scripts):
    hangs = "gpufrag.on_checkpoint(lambda request: time.sleep(60))\nask('prepare'), ask('at'), ask('confirm')"
    program = _program(UNDER_WAY + OWN, hangs).replace("timeout=30", "timeout=-9")  # on top come 10 s
    code, lines, err = _run(scripts, program, signal.SIGTERM)
    assert (code, lines) == (3, ["own handler"])
    assert "takes part in another checkpoint" in err


def test_call_outside_the_main_thread_is_refused(scripts):
    program = """
import threading, gpufrag
from gpufrag.errors import UsageError
def call():
    try:
        gpufrag.checkpoint_on_signal()
    except UsageError as error:
        print(error)
thread = threading.Thread(target=call)
thread.start()
thread.join()
"""
    assert "in the main thread" in scripts.run(program)
