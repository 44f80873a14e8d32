"""The anchor in real torch. Each case runs in its own process, because the anchor is made at CUDA's first use."""

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

pytestmark = pytest.mark.cuda
REPORT = """
import json, sys, time, torch
def report(**more):
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


def _run(tmp_path: Path, program: str, anchor: str = "10%", conf: str = "") -> dict[str, Any]:
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
        [sys.executable, "-c", REPORT + program], env=environment, text=True, capture_output=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_anchor_reserves_one_free_segment(tmp_path: Path) -> None:
    found = _run(tmp_path, "kept = torch.zeros(1, device='cuda'); report()")
    assert 0.099 <= found["reserved"] <= 0.101
    assert found["allocated"] == 512
    assert (found["ooms"], found["retries"], found["errors"]) == (0, 0, {})


def test_large_request_later_fits_into_the_anchor(tmp_path: Path) -> None:
    program = """
size = torch.cuda.get_device_properties(0).total_memory // 200
held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(18)]
before = torch.cuda.memory_stats()["segment.all.current"]
del held
large = torch.empty(size * 17, dtype=torch.uint8, device="cuda")
report(before=before)
"""
    found = _run(tmp_path, program)
    assert found["segments"] == found["before"] == 1
    assert 0.099 <= found["reserved"] <= 0.101


def test_no_anchor_without_the_setting(tmp_path: Path) -> None:
    found = _run(tmp_path, "kept = torch.zeros(1, device='cuda'); report()", anchor="")
    assert found["reserved"] < 0.001


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128", "backend:cudaMallocAsync"])
def test_anchor_is_refused_and_counted_under_unsuitable_settings(tmp_path: Path, conf: str) -> None:
    found = _run(tmp_path, "kept = torch.zeros(1, device='cuda'); report()", conf=conf)
    assert found["reserved"] < 0.01
    assert found["errors"].get("anchor") == 1


def test_anchor_above_the_limit_is_refused_without_oom(tmp_path: Path) -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        pytest.skip("per_process_memory_fraction is new in torch 2.10")
    found = _run(tmp_path, "kept = torch.zeros(1, device='cuda'); report()", conf="per_process_memory_fraction:0.05")
    assert found["reserved"] < 0.01
    assert (found["ooms"], found["errors"].get("anchor")) == (0, 1)


def test_limit_set_later_releases_the_anchor(tmp_path: Path) -> None:
    program = """
first = torch.zeros(1 << 20, device="cuda")
del first
torch.cuda.set_per_process_memory_fraction(0.05)
kept = torch.empty(torch.cuda.get_device_properties(0).total_memory // 25, dtype=torch.uint8, device="cuda")
report()
"""
    assert _run(tmp_path, program)["ooms"] == 0


def test_anchor_on_several_devices_waits_for_an_uncaptured_forward(tmp_path: Path) -> None:
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
report(early=early, captured=captured)
"""
    found = _run(tmp_path, program)
    assert found["early"] < 1 << 26
    assert found["captured"] < 1 << 27
    assert found["reserved"] >= 0.099
    assert found["errors"] == {}
