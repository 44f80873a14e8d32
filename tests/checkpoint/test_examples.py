"""The framework callbacks in real programs on a CPU: they save, exit with 42, and resume after a restart."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpufrag
from gpufrag.checkpoint.coordinator import Coordinator, ask_folder, ranks_in
from gpufrag.checkpoint.participant import EXIT_CODE
from gpufrag.checkpoint.protocol import Answers, Saved, Terms
from helpers import TESTS

HERE = Path(__file__).parent
PATIENCE = 60.0


def _needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


PROGRAMS = [
    pytest.param(TESTS.parent / "docs" / "examples" / "plain_loop.py", marks=_needs("torch"), id="plain"),
    pytest.param(HERE / "train_lightning.py", marks=_needs("torch", "lightning"), id="lightning"),
    pytest.param(HERE / "train_huggingface.py", marks=_needs("torch", "transformers", "accelerate"), id="huggingface"),
]
pytestmark = pytest.mark.real


def _start(home: Path, program: Path, *arguments: str) -> subprocess.Popen[str]:
    path = [str(Path(gpufrag.__file__).parents[1]), str(TESTS), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(path), "GPUFRAG_DIR": str(home / "shared"), "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **own, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / "hosted.py"), str(program), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _has_stepped(heard: Answers) -> bool:
    return bool(heard.ranks) and all(one.step is not None for one in heard.ranks)


def _save_and_end(home: Path, job: subprocess.Popen[str]) -> Saved:
    folder, deadline = home / "shared", time.monotonic() + PATIENCE
    while not _has_stepped(ask_folder(folder, "status", {"id": "one"})):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    terms = Terms("one", PATIENCE, hold=PATIENCE, lead=0.1)
    coordinator = Coordinator(ranks_in(folder), terms)
    saved = coordinator.save()
    assert saved is not None
    coordinator.release(end=True)
    return saved


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_saves_ends_and_resumes_from_there(tmp_path, program):
    folder = str(tmp_path / "checkpoints")
    with _start(tmp_path, program, folder, *(["1000000"] if program.parent != HERE else [])) as job:
        saved = _save_and_end(tmp_path, job)
        _, errors = job.communicate(timeout=PATIENCE)
        assert job.returncode == EXIT_CODE, errors
    assert saved.path is not None
    last = [saved.path] if program.parent == HERE else [str(saved.step + 2)]
    with _start(tmp_path, program, folder, *last) as again:
        out, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    if program.parent == HERE:
        assert out.splitlines()[-1] == f"ended at {saved.step + 2}"
