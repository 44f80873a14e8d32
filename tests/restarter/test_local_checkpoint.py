"""A job of this host with agents: two ranks save at one step and the job restarts, or they defragment instead."""

from __future__ import annotations

import os
import sys

import pytest

from helpers import TESTS
from restarter.threaded_rig import restarting
from supervisor.supervised_process import Supervised, eventually

RANK = """
import os, sys, time
from pathlib import Path
import gpufrag
from fake_source import MovingSource, ScriptedSource
from gpufrag import agent
log, kept = Path(os.environ["LOG"]), Path(os.environ["LOG"] + os.environ["RANK"])
def write(text):
    with log.open("a") as file: file.write(f"rank {os.environ['RANK']} {text}\\n")
source = MovingSource if "MOVES" in os.environ else ScriptedSource
agent.start(source=source(steps=False), interval=5.0)
@gpufrag.on_checkpoint
def save(request):
    if os.environ["RANK"] == os.environ.get("BROKEN"):
        raise OSError("disk full")
    kept.write_text(str(request.step))
    write(f"saved {request.step}")
if "ON_SIGNAL" in os.environ:
    gpufrag.checkpoint_on_signal()
step = int(kept.read_text()) if kept.exists() else 0
write(f"from {step}")
try:
    while True:
        time.sleep(0.01)
        step += 1
        gpufrag.step_ended(step)
finally:
    write(f"ended {step}")
"""
LAUNCHER = """
import os, subprocess, sys
places = [{**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]
ranks = [subprocess.Popen([sys.executable, sys.argv[1]], env=place) for place in places]
for rank in ranks: rank.wait()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a job of two ranks; all of them share a folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])))
    (tmp_path / "rank.py").write_text(RANK)
    started = []

    def run(name="train", *flags):
        folder = tmp_path / name if started else tmp_path
        folder.mkdir(exist_ok=True)
        if started:
            (folder / "agents").symlink_to(tmp_path / "agents")
        launcher = [sys.executable, "-c", LAUNCHER, str(tmp_path / "rank.py")]
        started.append(Supervised(folder, "--name", name, *flags, "--", *launcher))
        for rank in (0, 1):
            started[-1].until(f"rank {rank} from 0")
        eventually(lambda: len(list((tmp_path / "agents").glob("*.sock"))) >= 3 * len(started))  # and a supervisor's
        return started[-1]

    yield run
    for job in started:
        job.close()


@pytest.fixture
def restarter(tmp_path):
    with restarting(tmp_path, checkpoint={"timeout": "30s"}) as one:
        yield one


def of(it: Supervised, what: str) -> list[str]:
    return sorted(line.rpartition(" ")[2] for line in it.lines if f" {what} " in line)


@pytest.fixture
def restart(restarter):
    """Restart a job; return the one step at which both ranks saved."""

    def restart(job):
        restarter.send("train")
        restarter.until("started started", "restarted restarted")
        eventually(lambda: len(of(job, "from")) == 4)
        (step,) = set(of(job, "saved"))
        return step

    return restart


def test_all_ranks_save_at_one_step_and_continue_from_it(start, restart, restarter):
    train = start()
    step = restart(train)
    assert of(train, "from") == sorted(["0", "0", step, step])
    assert f"All 2 ranks saved at step {step}." in restarter.decisions[0]["text"]


def test_rank_with_a_sigterm_handler_saves_once(start, restart, monkeypatch):
    monkeypatch.setenv("ON_SIGNAL", "1")
    train = start()
    step = restart(train)
    assert (of(train, "saved"), of(train, "ended")) == ([step, step], [step, step])
    assert "no checkpoint" not in train.stderr


def test_ranks_of_another_job_are_not_asked(start, restart):
    train, other = start(), start("other")
    restart(train)
    assert (of(other, "saved"), of(other, "from")) == ([], ["0", "0"])


def test_failed_checkpoint_keeps_the_job_running(start, restarter, monkeypatch):
    monkeypatch.setenv("BROKEN", "1")
    train = start()
    restarter.send("train")
    restarter.until("refused checkpoint-failed")
    assert "disk full" in restarter.decisions[0]["text"]
    assert of(train, "from") == ["0", "0"]
    assert train.job.annotations["gpufrag.dev/restart-count"] == "1", "the attempt counts for the cooldown"


def test_job_that_opted_in_is_defragmented_instead(start, restarter, monkeypatch):
    monkeypatch.setenv("MOVES", "1")
    train = start("train", "--defragment")
    restarter.send("train")
    restarter.until("defragmented defragmented")
    assert "moved on all 2 ranks" in restarter.decisions[0]["text"]
    assert of(train, "from") == ["0", "0"]
    assert not train.job.annotations.keys() & {"gpufrag.dev/restart-count", "gpufrag.dev/restart-phase"}
    assert "gpufrag.dev/defragmented-at" in train.job.annotations


def test_ranks_without_torch_cannot_and_are_restarted(start, restarter):
    train = start("train", "--defragment")
    restarter.send("train")
    restarter.until("not-defragmented failed", "started started", "restarted restarted")
    assert "rank 0, rank 1 cannot defragment: only memory of PyTorch" in restarter.decisions[0]["text"]
    assert len(set(of(train, "saved"))) == 1
