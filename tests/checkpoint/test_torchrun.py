"""Real processes of torchrun (CPU, gloo) whose saving is a collective: all save at one step, or none does."""

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
from gpufrag.checkpoint import rank_sockets
from gpufrag.checkpoint.agree import agree
from gpufrag.checkpoint.records import PREPARED, Ask, Heard, NotSaved, Saved, Terms, release
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
        return rank_sockets.lead(agree(terms, time.monotonic), rank_sockets.in_folder(self.folder))

    def release(self, *, end: bool, checkpoint: str = "one") -> None:
        ask = release(checkpoint, end=end)
        rank_sockets.broadcast(self.folder, ask.command, ask.fields)

    def steps(self) -> list[int]:
        return [int((self.out / f"step-{rank}").read_text() or 0) for rank in range(self.size)]

    def must_train_on(self) -> None:
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
def test_all_ranks_save_at_one_step_together(tmp_path: Path, size: int, scene: str) -> None:
    with _torchrun(tmp_path, size, scene) as job:
        job.pids()
        saved = job.save()
        assert saved is not None
        states = _saved_by(job)
        assert [state["step"] for state in states] == [saved.step] * size
        assert [state["steps"] for state in states] == [[saved.step] * size] * size
        assert saved.path == str(job.out / "one-0.pt")
        job.release(end=False)
        job.must_train_on()


def test_an_end_with_42_is_a_restart_to_torchrun(tmp_path: Path) -> None:
    with _torchrun(tmp_path, 2, "", "--max-restarts=1") as job:
        job.pids()
        assert job.save() is not None
        job.release(end=True)
        job.wait_for(lambda: len(list(job.out.glob("trains-1-*"))) == 2, "they are not started again")


def test_a_rank_without_a_callback_holds_nobody_up(tmp_path: Path) -> None:
    with _torchrun(tmp_path, 2, "one without") as job:
        job.pids()
        with pytest.raises(NotSaved, match="rank 1 has no checkpoint callback"):
            job.save()
        job.must_train_on()
        assert not list(job.out.glob("*.pt"))


def test_a_rank_that_stands_still_past_the_promise_calls_it_off(tmp_path: Path) -> None:
    """Rank 1 is stopped: it promised nothing, and rank 0, which did, trains on when it goes on."""
    with _torchrun(tmp_path, 2) as job:
        pid = job.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(NotSaved, match="no answer"):
                job.save()
        finally:
            os.kill(pid, signal.SIGCONT)
        job.must_train_on()
        assert job.save("two") is not None
        job.release(end=False, checkpoint="two")


def test_a_rank_that_dies_before_its_step_is_named(tmp_path: Path) -> None:
    with _torchrun(tmp_path, 2) as job:
        pid = job.pids()[1]
        ask = rank_sockets.in_folder(job.folder)

        def kill_it_after_its_promise(wanted: Ask) -> Heard:
            heard = ask(wanted)
            if wanted.command == "at":
                os.kill(pid, signal.SIGKILL)
                job.wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), "it does not die")
            return heard

        with pytest.raises(NotSaved, match="rank 1"):
            rank_sockets.lead(agree(TERMS, time.monotonic), kill_it_after_its_promise)
        assert not list(job.out.glob("*.pt"))


def test_a_step_that_has_passed_is_promised_by_nobody(tmp_path: Path) -> None:
    with _torchrun(tmp_path, 2) as job:
        job.pids()
        ask = rank_sockets.in_folder(job.folder)
        ask(Ask("prepare", {"id": "one"}))
        heard = ask(Ask("at", {"id": "one", "step": 2, "patience": PATIENCE, "hold": PATIENCE}))
        assert [one.state for one in heard.ranks] == [PREPARED] * 2
        job.must_train_on()
        ask(Ask("cancel", {"id": "one"}))
        assert job.save("two") is not None
        job.release(end=False, checkpoint="two")
