"""The demo's processes: none outlives the demo, and one that dies ends it with a reason."""

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
from gpufrag.demo import processes, rank
from gpufrag.demo.processes import ENDINGS, Process, uninterrupted
from gpufrag.errors import Unavailable

PATIENCE = 20.0
DIES = "import sys; print('noise', file=sys.stderr); sys.exit('gpufrag demo: no luck\\x1b[31m')"
LIVES = "import threading; threading.Event().wait()"


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def how_ended(process: Process) -> str:
    """Return the error of require_alive for a process that has ended."""
    texts: list[str] = []

    def ended() -> bool:
        try:
            process.require_alive()
        except Unavailable as error:
            texts.append(str(error))
        return bool(texts)

    wait_until(ended)
    process.end()
    return texts[0]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (DIES, "rank 3 exited with code 1: no luck\\x1b[31m"),
        ("raise ValueError('odd')", "rank 3 exited with code 1: ValueError: odd"),
        ("raise SystemExit(5)", "rank 3 exited with code 5"),
        ("import os; os.kill(os.getpid(), 9)", "rank 3 was killed by SIGKILL"),
    ],
)
def test_process_end_is_one_line(program, line):
    assert how_ended(Process("rank 3", ["-c", program], {})) == line


def test_dead_rank_ends_the_demo_with_its_reason():
    lives_and_dies = processes.running([["-c", LIVES], ["-c", DIES]])
    with pytest.raises(Unavailable, match=r"rank 1 exited with code 1: no luck"), lives_and_dies as demo:
        wait_until(demo.require_alive)


def test_gpu_demo_without_torch_ends_at_once(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "gpufrag", "demo", "--gpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1
    assert done.stderr == ("gpufrag: rank 0 exited with code 1: --gpu needs torch: install it, or omit --gpu\n")


def demo_processes(folder: Path) -> list[int]:
    """Living processes with this folder in their environment."""
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
def test_no_process_outlives_the_demo(tmp_path, number, early):
    command = [sys.executable, "-m", "gpufrag", "demo", "--play", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as demo:
        assert demo.stdout
        if early:
            wait_until(lambda: len(demo_processes(tmp_path)) > 1)
        else:
            demo.stdout.readline()
        demo.send_signal(number)
        demo.send_signal(signal.SIGTERM)  # one more, while it cleans up
        demo.stdout.read()
        assert demo.wait(PATIENCE) in (128 + number, 128 + signal.SIGTERM)
    assert (list(tmp_path.iterdir()), demo_processes(tmp_path)) == ([], [])


def test_signal_during_process_start_is_delayed():
    received: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGHUP)
            assert received == []
        assert received == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_final_sample_is_retried_on_busy_machine(monkeypatch):
    answers = iter([Unavailable("busy"), Unavailable("busy"), None])

    def sample_now() -> None:
        if error := next(answers):
            raise error

    monkeypatch.setattr(lifecycle, "sample_now", sample_now)
    rank.sample_the_end()
    assert list(answers) == []


def test_final_sample_that_never_comes_is_an_error(monkeypatch):
    def sample_now() -> None:
        raise Unavailable("no sample within 1 s")

    monkeypatch.setattr(lifecycle, "sample_now", sample_now)
    with pytest.raises(Unavailable, match="no sample"):
        rank.sample_the_end()
