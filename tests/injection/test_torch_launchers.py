"""Torch's own launchers, on its CPU build: each rank has an agent once torch runs its CUDA initialisation callbacks."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufrag.commands.run import SHIM
from gpufrag.wire.sample import decode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

USE_GPU = """
import os, sys, threading, time, torch
def use_gpu():
    for call, _ in list(torch.cuda._queued_calls):
        if call.__module__ == "gpufrag.agent.arrival": call()
    assert "gpufrag-sampler" in [thread.name for thread in threading.enumerate()]
    deadline = time.monotonic() + 30
    while sys.modules["gpufrag.agent"].latest() is None and time.monotonic() < deadline: time.sleep(0.005)
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one write: lines stay whole
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def _lines(tmp_path: Path, program: str, *launcher: str) -> list[str]:
    """What it prints, sorted, as a file run by the launcher."""
    script = tmp_path / "train.py"
    script.write_text(USE_GPU + program)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SHIM), os.environ.get("PYTHONPATH")])),
        "GPUFRAG_DIR": str(tmp_path / "shared"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def _ranks(tmp_path: Path) -> list[int | None]:
    return sorted((decode(f.read_bytes()).identity.rank for f in (tmp_path / "shared").glob("*.json")), key=str)


def test_elastic_restart_brings_new_agents(tmp_path: Path) -> None:
    program = """
use_gpu()
say(os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "0": os._exit(1)
    time.sleep(60)  # torchrun ends it
"""
    lines = _lines(tmp_path, program, *TORCHRUN, "--max-restarts=1", "--monitor-interval=0.1")
    assert {"0 1", "1 1"} <= set(lines)
    assert {0, 1} <= set(_ranks(tmp_path))


def test_forked_workers_of_a_rank_have_no_agent(tmp_path: Path) -> None:
    program = """
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return sum("gpufrag" in t.name for t in threading.enumerate())
use_gpu()
loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork")
say([int(row) for row in loader], sys.modules["gpufrag.agent.lifecycle"].running())
"""
    assert _lines(tmp_path, program) == ["[0, 0, 0, 0] True"]
    assert len(_ranks(tmp_path)) == 1
