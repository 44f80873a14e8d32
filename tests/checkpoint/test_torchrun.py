"""Real processes of torchrun (CPU, gloo) that save with a collective: all save at one step, or none does."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import gpufrag
from gpufrag.checkpoint.coordinator import Coordinator, ranks_in
from gpufrag.checkpoint.protocol import PREPARED, Answers, CheckpointFailed, RankCommand, Saved, Terms
from helpers import TESTS

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
PATIENCE = 40.0
TERMS = Terms("one", timeout=PATIENCE, hold=PATIENCE, lead=0.2)
EXPORTER = Path(gpufrag.__file__).parents[1]


@dataclass
class Torchrun:
    """One job; `out` is where its ranks leave what they do."""

    process: subprocess.Popen[str]
    folder: Path
    out: Path
    size: int

    def wait_for(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Once all ranks train, and their sockets are there."""
        files = [self.out / f"trains-0-{rank}" for rank in range(self.size)]
        self.wait_for(lambda: all(file.exists() and file.read_text() for file in files), "they do not train")
        pids = [int(file.read_text()) for file in files]
        names = [f"-{pid}-" for pid in pids]
        self.wait_for(lambda: all(list(self.folder.glob(f"*{name}*.sock")) for name in names), "they do not listen")
        return pids

    def save(self, checkpoint: str = "one") -> Saved | None:
        terms = replace(TERMS, id=checkpoint)
        return Coordinator(ranks_in(self.folder), terms).save()

    def release(self, *, end: bool, checkpoint: str = "one") -> None:
        Coordinator(ranks_in(self.folder), replace(TERMS, id=checkpoint)).release(end=end)

    def steps(self) -> list[int]:
        return [int((self.out / f"step-{rank}").read_text() or 0) for rank in range(self.size)]

    def assert_training(self) -> None:
        before = self.steps()
        self.wait_for(lambda: all(a > b for a, b in zip(self.steps(), before)), "they no longer train")


@contextmanager
def _torchrun(home: Path, size: int, scene: str = "", *flags: str) -> Iterator[Torchrun]:
    folder, out = home / "shared", home / "out"
    out.mkdir()
    path = os.pathsep.join([str(EXPORTER), str(TESTS), os.environ.get("PYTHONPATH", "")])
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    own = {"PYTHONPATH": path, "GPUFRAG_DIR": str(folder), "OUT": str(out), "SCENE": scene}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", *flags]
    process = subprocess.Popen(
        [*command, str(Path(__file__).with_name("rank.py"))],
        env={**os.environ, **quiet, **own},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield Torchrun(process, folder, out, size)
    finally:
        (out / "stop").write_text("")
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def _saved_by(job: Torchrun, checkpoint: str = "one") -> list[dict[str, object]]:
    import torch

    return [torch.load(job.out / f"{checkpoint}-{rank}.pt") for rank in range(job.size)]


@pytest.mark.parametrize(("size", "scene"), [(2, ""), (2, "slow"), (8, "")])
def test_all_ranks_save_at_one_step(tmp_path, size, scene):
    with _torchrun(tmp_path, size, scene) as job:
        job.pids()
        saved = job.save()
        assert saved is not None
        states = _saved_by(job)
        assert [state["step"] for state in states] == [saved.step] * size
        assert [state["steps"] for state in states] == [[saved.step] * size] * size
        assert saved.path == str(job.out / "one-0.pt")
        job.release(end=False)
        job.assert_training()


def test_torchrun_restarts_ranks_that_ended_with_42(tmp_path):
    with _torchrun(tmp_path, 2, "", "--max-restarts=1") as job:
        job.pids()
        assert job.save() is not None
        job.release(end=True)
        job.wait_for(lambda: len(list(job.out.glob("trains-1-*"))) == 2, "they are not started again")


def test_rank_without_callback_lets_all_continue(tmp_path):
    with _torchrun(tmp_path, 2, "one without") as job:
        job.pids()
        with pytest.raises(CheckpointFailed, match="rank 1: no checkpoint callback"):
            job.save()
        job.assert_training()
        assert not list(job.out.glob("*.pt"))


def test_stopped_rank_cancels_the_checkpoint(tmp_path):
    """Rank 1 is stopped and promises nothing; rank 0 has promised, and trains on once rank 1 continues."""
    with _torchrun(tmp_path, 2) as job:
        pid = job.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(CheckpointFailed, match="no answer"):
                job.save()
        finally:
            os.kill(pid, signal.SIGCONT)
        job.assert_training()
        assert job.save("two") is not None
        job.release(end=False, checkpoint="two")


def test_rank_that_dies_before_its_step_is_named(tmp_path):
    with _torchrun(tmp_path, 2) as job:
        pid = job.pids()[1]
        ask = ranks_in(job.folder)

        def kill_it_after_its_promise(wanted: RankCommand) -> Answers:
            heard = ask(wanted)
            if wanted.name == "at":
                os.kill(pid, signal.SIGKILL)
                job.wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), "it does not die")
            return heard

        with pytest.raises(CheckpointFailed, match="rank 1"):
            Coordinator(kill_it_after_its_promise, TERMS).save()
        assert not list(job.out.glob("*.pt"))


def test_passed_step_is_not_promised(tmp_path):
    with _torchrun(tmp_path, 2) as job:
        job.pids()
        ask = ranks_in(job.folder)
        ask(RankCommand("prepare", {"id": "one"}))
        heard = ask(RankCommand("at", {"id": "one", "step": 2, "patience": PATIENCE, "hold": PATIENCE}))
        assert [one.state for one in heard.ranks] == [PREPARED] * 2
        job.assert_training()
        ask(RankCommand("cancel", {"id": "one"}))
        assert job.save("two") is not None
        job.release(end=False, checkpoint="two")
