"""The anchor in real torch: each case in a process of its own, because it is dropped at CUDA's first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufrag.commands.run import SHIM

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
TELL = """
import json, sys, time, torch
def tell(**more):
    from gpufrag import agent
    deadline = time.monotonic() + 20
    while agent.latest() is None and time.monotonic() < deadline: time.sleep(0.01)
    sys.modules["gpufrag.agent.lifecycle"].sample_now()
    stats = torch.cuda.memory_stats()
    total = torch.cuda.get_device_properties(0).total_memory
    print(json.dumps(dict(
        reserved=torch.cuda.memory_reserved() / total, allocated=torch.cuda.memory_allocated(),
        segments=stats.get("segment.all.current", 0), ooms=stats.get("num_ooms", 0),
        retries=stats.get("num_alloc_retries", 0), errors=agent.latest().health.errors, **more)))
"""


def _told(tmp_path: Path, program: str, anchor: str = "10%", conf: str = "") -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SHIM), os.environ.get("PYTHONPATH")])),
        "GPUFRAG_DIR": str(tmp_path),
        "GPUFRAG_ANCHOR": anchor,
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
    }
    environment = {name: value for name, value in environment.items() if value}
    done = subprocess.run(
        [sys.executable, "-c", TELL + program], env=environment, text=True, capture_output=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_share_is_reserved_in_one_piece_and_free(tmp_path: Path) -> None:
    told = _told(tmp_path, "kept = torch.zeros(1, device='cuda'); tell()")
    assert 0.099 <= told["reserved"] <= 0.101
    assert told["allocated"] == 512
    assert (told["ooms"], told["retries"], told["errors"]) == (0, 0, {})


def test_a_large_request_later_finds_it_whatever_came_between(tmp_path: Path) -> None:
    program = """
size = torch.cuda.get_device_properties(0).total_memory // 200
held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(18)]
before = torch.cuda.memory_stats()["segment.all.current"]
del held
large = torch.empty(size * 17, dtype=torch.uint8, device="cuda")
tell(before=before)
"""
    told = _told(tmp_path, program)
    assert told["segments"] == told["before"] == 1
    assert 0.099 <= told["reserved"] <= 0.101


def test_without_being_asked_for_there_is_none(tmp_path: Path) -> None:
    told = _told(tmp_path, "kept = torch.zeros(1, device='cuda'); tell()", anchor="")
    assert told["reserved"] < 0.001


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128", "backend:cudaMallocAsync"])
def test_where_it_would_be_useless_or_harmful_it_is_not_dropped_but_counted(tmp_path: Path, conf: str) -> None:
    told = _told(tmp_path, "kept = torch.zeros(1, device='cuda'); tell()", conf=conf)
    assert told["reserved"] < 0.01
    assert told["errors"].get("anchor") == 1


def test_a_limit_that_stands_in_the_way_is_no_oom(tmp_path: Path) -> None:
    told = _told(tmp_path, "kept = torch.zeros(1, device='cuda'); tell()", conf="per_process_memory_fraction:0.05")
    assert told["reserved"] < 0.01
    assert (told["ooms"], told["errors"].get("anchor")) == (0, 1)


def test_a_fraction_that_is_set_later_is_met_by_torchs_own_release(tmp_path: Path) -> None:
    program = """
first = torch.zeros(1 << 20, device="cuda")
del first
torch.cuda.set_per_process_memory_fraction(0.05)
kept = torch.empty(torch.cuda.get_device_properties(0).total_memory // 25, dtype=torch.uint8, device="cuda")
tell()
"""
    assert _told(tmp_path, program)["ooms"] == 0


def test_of_several_devices_it_waits_for_a_forward_pass_outside_a_graph(tmp_path: Path) -> None:
    program = """
real = torch.cuda.device_count
def two_for_the_agent():
    return 2 if sys._getframe(1).f_globals["__name__"].startswith("gpufrag") else real()
torch.cuda.device_count = two_for_the_agent
net, rows = torch.nn.Linear(8, 8).cuda(), torch.zeros(8, 8, device="cuda")
torch.cuda.device_count = real
early = torch.cuda.memory_reserved()
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
    torch.nn.functional.linear(rows, net.weight)  # cuBLAS before the capture, and no module's forward pass
torch.cuda.synchronize()
with torch.no_grad(), torch.cuda.graph(graph):
    out = net(rows)
captured = torch.cuda.memory_reserved()
graph.replay()
net(rows)
tell(early=early, captured=captured)
"""
    told = _told(tmp_path, program)
    assert told["early"] < 1 << 26
    assert told["captured"] < 1 << 27
    assert told["reserved"] >= 0.099
    assert told["errors"] == {}
