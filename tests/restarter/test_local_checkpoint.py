"""A job of this host with agents: two ranks save at one step and the job restarts, or they defragment instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from helpers import TESTS
from restarter.threaded_rig import ThreadedRestarter, alert, eventually, restarting
from supervisor.supervised_process import Supervised

RANK = """
import os, sys, time
from pathlib import Path
import gpufrag
from fake_source import MovingSource, ScriptedSource
from gpufrag import agent
log, kept = Path(os.environ["LOG"]), Path(os.environ["LOG"] + os.environ["RANK"])
def say(text):
    with log.open("a") as file: file.write(f"rank {os.environ['RANK']} {text}\\n")
source = MovingSource if "MOVES" in os.environ else ScriptedSource
agent.start(source=source(steps=False), interval=5.0)
@gpufrag.on_checkpoint
def save(request):
    if os.environ["RANK"] == os.environ.get("BROKEN"):
        raise OSError("disk full")
    kept.write_text(str(request.step))
    say(f"saved {request.step}")
if "ON_SIGNAL" in os.environ:
    gpufrag.checkpoint_on_signal()
step = int(kept.read_text()) if kept.exists() else 0
say(f"from {step}")
try:
    while True:
        time.sleep(0.01)
        step += 1
        gpufrag.step_ended(step)
finally:
    say(f"ended {step}")
"""
LAUNCHER = """
import os, subprocess, sys
places = [{**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]
ranks = [subprocess.Popen([sys.executable, sys.argv[1]], env=place) for place in places]
for rank in ranks: rank.wait()
"""


def job(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *flags: str) -> Supervised:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])))
    (folder / "rank.py").write_text(RANK)
    launcher = [sys.executable, "-c", LAUNCHER, str(folder / "rank.py")]
    it = Supervised(folder, "--name", name, *flags, "--", *launcher)
    for rank in (0, 1):
        it.until(f"rank {rank} from 0")
    eventually(lambda: len(set(it.folder.glob("*.sock")) - {it.socket}) >= 2)
    return it


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    it = job(tmp_path, monkeypatch, "train")
    yield it
    it.close()


@pytest.fixture
def restarter(tmp_path: Path) -> Iterator[ThreadedRestarter]:
    with restarting(tmp_path, target="process", process={"folder": "agents"}, checkpoint={"timeout": "30s"}) as one:
        yield one


def of(it: Supervised, what: str) -> list[str]:
    return sorted(line.rpartition(" ")[2] for line in it.lines if f" {what} " in line)


def restarted_at(it: Supervised, restarter: ThreadedRestarter) -> str:
    """Return the one step at which both ranks saved."""
    restarter.send(alert("train"))
    restarter.until("started started", "restarted restarted")
    eventually(lambda: len(of(it, "from")) == 4)
    (step,) = set(of(it, "saved"))
    return step


def test_all_ranks_save_at_one_step_and_continue_from_it(train: Supervised, restarter: ThreadedRestarter) -> None:
    step = restarted_at(train, restarter)
    assert of(train, "from") == sorted(["0", "0", step, step])
    assert f"All 2 ranks saved at step {step}." in restarter.decisions[0]["text"]


def test_rank_with_a_sigterm_handler_saves_once(
    restarter: ThreadedRestarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ON_SIGNAL", "1")
    with closing(job(tmp_path, monkeypatch, "train")) as it:
        step = restarted_at(it, restarter)
        assert (of(it, "saved"), of(it, "ended")) == ([step, step], [step, step])
        assert "no checkpoint" not in it.told


def test_ranks_of_another_job_are_not_asked(
    train: Supervised, restarter: ThreadedRestarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "agents").symlink_to(train.folder)
    monkeypatch.setattr(Supervised, "socket", property(lambda it: next(it.folder.glob("*.job.sock"))))
    with closing(job(second, monkeypatch, "other")) as other:
        restarted_at(train, restarter)
        assert of(other, "saved") == []
        assert of(other, "from") == ["0", "0"]


def test_failed_checkpoint_keeps_the_job_running(
    restarter: ThreadedRestarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    with closing(job(tmp_path, monkeypatch, "train")) as it:
        restarter.send(alert("train"))
        restarter.until("refused checkpoint-failed")
        assert "disk full" in restarter.decisions[0]["text"]
        assert of(it, "from") == ["0", "0"]
        assert it.job.annotations["gpufrag.dev/restart-count"] == "1", "the attempt counts for the cooldown"


def test_job_that_opted_in_is_defragmented_instead(
    restarter: ThreadedRestarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOVES", "1")
    with closing(job(tmp_path, monkeypatch, "train", "--defragment")) as it:
        restarter.send(alert("train"))
        restarter.until("defragmented defragmented")
        assert "moved on all 2 ranks" in restarter.decisions[0]["text"]
        assert of(it, "from") == ["0", "0"]
        assert "gpufrag.dev/restart-count" not in it.job.annotations
        assert "gpufrag.dev/restart-phase" not in it.job.annotations
        assert "gpufrag.dev/defragmented-at" in it.job.annotations


def test_ranks_without_torch_cannot_and_are_restarted(
    restarter: ThreadedRestarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(job(tmp_path, monkeypatch, "train", "--defragment")) as it:
        restarter.send(alert("train"))
        restarter.until("not-defragmented failed", "started started", "restarted restarted")
        assert "rank 0, rank 1 cannot defragment: only memory of PyTorch" in restarter.decisions[0]["text"]
        assert len(set(of(it, "saved"))) == 1
