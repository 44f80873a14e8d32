"""The demo's processes: none outlives it, and one that dies ends it in a line that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufrag.agent import lifecycle
from gpufrag.demo import fleet, rank
from gpufrag.demo.process import ENDINGS, Process, uninterrupted
from gpufrag.errors import Unavailable

PATIENCE = 20.0
DIES = "import sys; print('noise', file=sys.stderr); sys.exit('gpufrag demo: no luck\\x1b[31m')"
LIVES = "import threading; threading.Event().wait()"


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def told(process: Process) -> str:
    """What is said of a process once it has ended."""
    said: list[str] = []

    def ended() -> bool:
        try:
            process.require_alive()
        except Unavailable as error:
            said.append(str(error))
        return bool(said)

    until(ended)
    process.end()
    return said[0]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (DIES, "rank 3 ended with exit code 1: no luck\\x1b[31m"),
        ("raise ValueError('odd')", "rank 3 ended with exit code 1: ValueError: odd"),
        ("raise SystemExit(5)", "rank 3 ended with exit code 5"),
        ("import os; os.kill(os.getpid(), 9)", "rank 3 was ended by SIGKILL"),
    ],
)
def test_how_a_process_ended_is_one_line(program: str, line: str) -> None:
    assert told(Process("rank 3", ["-c", program], {})) == line


def test_a_rank_that_dies_at_once_ends_the_demo_with_its_name_and_reason() -> None:
    lives_and_dies = fleet.running([["-c", LIVES], ["-c", DIES]])
    with pytest.raises(Unavailable, match=r"rank 1 ended with exit code 1: no luck"), lives_and_dies as demo:
        until(demo.require_alive)


def test_without_torch_the_demo_on_a_gpu_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "gpufrag", "demo", "--gpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1
    assert done.stderr == (
        "gpufrag: rank 0 ended with exit code 1: the demo on a GPU needs torch; install it, or leave --gpu away\n"
    )


def of_the_demo(folder: Path) -> list[int]:
    """Processes that live, and have its folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(folder) in (entry / "environ").read_text(errors="replace"):
                found.append(int(entry.name))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


@pytest.mark.parametrize("number", ENDINGS, ids=lambda number: number.name)
@pytest.mark.parametrize("early", [True, False], ids=["while it starts", "when it runs"])
def test_nothing_outlives_the_demo(tmp_path: Path, number: signal.Signals, early: bool) -> None:
    command = [sys.executable, "-m", "gpufrag", "demo", "--play", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as demo:
        assert demo.stdout
        if early:
            until(lambda: len(of_the_demo(tmp_path)) > 1)
        else:
            demo.stdout.readline()
        demo.send_signal(number)
        demo.send_signal(signal.SIGTERM)  # one more, while it cleans up
        demo.stdout.read()
        assert demo.wait(PATIENCE) in (128 + number, 128 + signal.SIGTERM)
    assert (list(tmp_path.iterdir()), of_the_demo(tmp_path)) == ([], [])


def test_a_signal_that_comes_while_a_process_is_begun_is_kept() -> None:
    taken: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: taken.append(number))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGHUP)
            assert taken == []
        assert taken == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_busy_machine_is_asked_again_at_the_end_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Unavailable("busy"), Unavailable("busy"), None])

    def sample_now() -> None:
        if error := next(answers):
            raise error

    monkeypatch.setattr(lifecycle, "sample_now", sample_now)
    rank.sample_the_end()
    assert list(answers) == []


def test_an_agent_that_never_answers_is_told_by_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample_now() -> None:
        raise Unavailable("no sample within 1 s")

    monkeypatch.setattr(lifecycle, "sample_now", sample_now)
    with pytest.raises(Unavailable, match="no sample"):
        rank.sample_the_end()
