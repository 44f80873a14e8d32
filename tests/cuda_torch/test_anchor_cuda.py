"""The anchor in real torch. Each case runs in its own process, because the anchor is made at CUDA's first use."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from gpufrag.commands.run import SHIM

torch = pytest.importorskip("torch")

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


ONE = "kept = torch.zeros(1, device='cuda'); report()"


@pytest.fixture
def run(run_json) -> Callable[..., dict[str, Any]]:
    def run(program: str, anchor: str = "10%", conf: str = "") -> dict[str, Any]:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        settings = {"GPUFRAG_ANCHOR": anchor, "PYTORCH_CUDA_ALLOC_CONF": conf, "CUDA_VISIBLE_DEVICES": device}
        return run_json(REPORT + program, SHIM, **settings)

    return run


def test_anchor_reserves_one_free_segment(run) -> None:
    found = run(ONE)
    assert 0.099 <= found["reserved"] <= 0.101
    assert found["allocated"] == 512
    assert (found["ooms"], found["retries"], found["errors"]) == (0, 0, {})


def test_anchor_of_a_size_reserves_exactly_that(run) -> None:
    found = run("torch.cuda.init(); report()", anchor="2GiB")
    total = torch.cuda.get_device_properties(0).total_memory
    assert (round(found["reserved"] * total), found["errors"]) == (2 << 30, {})


def test_large_request_later_fits_into_the_anchor(run) -> None:
    program = """
size = torch.cuda.get_device_properties(0).total_memory // 200
held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(18)]
before = torch.cuda.memory_stats()["segment.all.current"]
del held
large = torch.empty(size * 17, dtype=torch.uint8, device="cuda")
report(before=before)
"""
    found = run(program)
    assert found["segments"] == found["before"] == 1
    assert 0.099 <= found["reserved"] <= 0.101


@pytest.mark.parametrize(
    ("anchor", "conf", "refused"),
    [
        ("", "", 0),
        ("10%", "expandable_segments:True", 1),
        ("10%", "max_split_size_mb:128", 1),
        ("10%", "backend:cudaMallocAsync", 1),
        ("10%", "per_process_memory_fraction:0.05", 1),
    ],
)
def test_anchor_is_refused_without_oom_and_off_by_default(run, anchor: str, conf: str, refused: int) -> None:
    if "fraction" in conf and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        pytest.skip("per_process_memory_fraction is new in torch 2.10")
    found = run(ONE, anchor, conf)
    assert found["reserved"] < 0.01
    assert (found["ooms"], found["errors"].get("anchor", 0)) == (0, refused)


def test_limit_set_later_releases_the_anchor(run) -> None:
    program = """
first = torch.zeros(1 << 20, device="cuda")
del first
torch.cuda.set_per_process_memory_fraction(0.05)
kept = torch.empty(torch.cuda.get_device_properties(0).total_memory // 25, dtype=torch.uint8, device="cuda")
report()
"""
    assert run(program)["ooms"] == 0


def test_anchor_waits_for_an_uncaptured_forward(run) -> None:
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
    found = run(program)
    assert found["early"] < 1 << 26
    assert found["captured"] < 1 << 27
    assert found["reserved"] >= 0.099
    assert found["errors"] == {}
