"""torchrun under a supervisor, on torch's CPU build: restarted whole, and in place, from an alert on."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufrag.wire.supervised_job import Elastic
from restarter.threaded_rig import restarting
from supervisor.supervised_process import Supervised, alive, eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
TRAIN = """
import os, signal, sys, time
log = open(os.environ["LOG"], "a", buffering=1)
say = lambda text: log.write(f"rank {os.environ['RANK']} {text}\\n")
def save(number, frame):
    say("saved")
    sys.exit(42)
signal.signal(signal.SIGTERM, save)
say(f"pid {os.getpid()}")
say(f"counts {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['GPUFRAG_RESTART_COUNT']}")
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def receiver(tmp_path):
    (tmp_path / "agents").mkdir()
    with restarting(tmp_path) as one:
        yield one


def torchrun(start: Any, tmp_path: Path, *flags: str, max_restarts: int) -> Supervised:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    it: Supervised = start(*flags, "--", *launcher, f"--max-restarts={max_restarts}", str(script))
    for rank in (0, 1):
        it.until(f"rank {rank} counts 0 0")
    return it


def counts(it: Supervised) -> list[str]:
    return sorted(line.partition("counts ")[2] for line in it.lines if "counts" in line)


def pids(it: Supervised) -> list[int]:
    return [int(line.split()[-1]) for line in it.lines if "pid" in line]


def test_in_place_restarts_only_the_workers(start, receiver, tmp_path):
    it = torchrun(start, tmp_path, "--in-place", max_restarts=1)
    receiver.send("train")
    receiver.until("started started", "restarted restarted")
    eventually(lambda: counts(it) == ["0 0", "0 0", "1 0", "1 0"])
    assert it.job.elastic == Elastic(max_restarts=1, restarts=1)
    assert [alive(pid) for pid in pids(it)] == [False, False, True, True]


def test_in_place_without_restarts_left_is_refused(start, receiver, tmp_path):
    it = torchrun(start, tmp_path, "--in-place", max_restarts=0)
    receiver.send("train")
    receiver.until("refused no-elastic-restarts-left")
    assert all(alive(pid) for pid in pids(it))


def test_workers_restarted_by_torchrun_are_a_conflict(start, tmp_path):
    it = torchrun(start, tmp_path, "--in-place", max_restarts=2)
    (worker, _) = pids(it)
    os.kill(worker, signal.SIGTERM)
    eventually(lambda: it.job.restarts == 1)
    assert it.ask("restart", restarts=0) == {"ok": True, "refused": "conflict"}


def test_full_restart_replaces_all_workers(start, receiver, tmp_path):
    it = torchrun(start, tmp_path, max_restarts=0)
    receiver.send("train")
    receiver.until("started started", "restarted restarted")
    eventually(lambda: counts(it) == ["0 0", "0 0", "0 1", "0 1"])
    assert [alive(pid) for pid in pids(it)] == [False, False, True, True]
    assert sum("saved" in line for line in it.lines) == 2


def test_killed_supervisor_leaves_no_worker(start, tmp_path):
    it = torchrun(start, tmp_path, max_restarts=0)
    it.process.kill()
    eventually(lambda: not any(alive(pid) for pid in pids(it)))
