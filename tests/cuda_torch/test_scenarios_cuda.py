"""The agent on unusual machines: many or huge devices, a growing neighbour, a driver that refuses."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

MIB, GIB = 1 << 20, 1 << 30
SCENE = """
import json, sys, time, warnings
import torch
from gpufrag import agent
from gpufrag.sidecar.oom_files import read_all
from gpufrag.agent import lifecycle
warnings.simplefilter("ignore")
GIB = 1 << 30
def take(size, device=0):
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
def until_oom(size, device=0):
    held = []
    try:
        while len(held) < 10_000: held.append(take(size, device))
    except torch.cuda.OutOfMemoryError: return held
def report():
    found = read_all(folder, 1).reports
    return {"cause": found[0].cause, "device": found[0].device} if found else None
folder = __import__("pathlib").Path(sys.argv[1])
torch.zeros(1, device="cuda")
agent.start(folder=folder, interval=0.05, budget=1.0)
def sample():
    lifecycle.sample_now()
    return agent.latest()
"""


@pytest.fixture
def run(run_json) -> Callable[..., Any]:
    """Runs a scene in a process with these FAKE_CUDA_* settings; it prints JSON."""
    try:
        is_fake = hasattr(ctypes.CDLL("libcuda.so.1"), "fake_used")
    except OSError:
        is_fake = False
    if not is_fake:
        pytest.skip("the machines of these tests exist only over tests/fake_cuda")

    def run_scene(scene: str, **settings: object) -> Any:
        return run_json(SCENE + scene, **{f"FAKE_CUDA_{key}": str(value) for key, value in settings.items()})

    return run_scene


def test_eight_devices_and_the_failing_one_are_published(run) -> None:
    scene = """
held = [take((1 + device) * GIB, device) for device in range(8)]
print(json.dumps({"reserved": {d.device: d.totals.large.reserved for d in sample().devices},
                  "uuids": len({d.uuid for d in sample().devices}),
                  "report": (until_oom(GIB, 5), report())[1]}))
"""
    found = run(scene, DEVICES=8, SIZE="16GiB")
    assert found["reserved"] == {str(device): (1 + device) * GIB for device in range(8)}
    assert found["uuids"] == 8
    assert found["report"] == {"cause": "capacity", "device": 5}


def test_growing_neighbour_is_the_cause_of_the_error(run) -> None:
    scene = "held = until_oom(64 << 20); print(json.dumps([report(), len(held) * 64 << 20]))"
    report, held = run(scene, SIZE="16GiB", OTHER="4GiB", GROWTH="256MiB")
    assert report == {"cause": "neighbours", "device": 0}
    assert held < 12 * GIB


def test_refused_memory_info_loses_only_figures(run) -> None:
    scene = """
held = take(GIB)
found = [sample() for _ in range(6)][-1]
device = found.devices[0]
print(json.dumps({"driver": device.driver is None, "reserved": device.totals.large.reserved,
                  "errors": sum(found.health.errors.values()), "works": take(GIB).numel() == GIB}))
"""
    found = run(scene, REFUSE="cudaMemGetInfo:1-")
    assert found["errors"] >= 1
    assert found == {"driver": True, "reserved": GIB, "errors": found["errors"], "works": True}


def test_refusal_below_free_memory_is_not_capacity(run) -> None:
    scene = "held = take(GIB); until_oom(3 * GIB); print(json.dumps(report()))"
    assert run(scene, REFUSE="cudaMalloc>2GiB")["cause"] == "unknown"


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("size", ["1.5TiB", "9.75GiB"])
def test_largest_allocatable_is_exact_on_this_device(run, monkeypatch, size: str, conf: str) -> None:
    scene = """
total = torch.cuda.mem_get_info()[1]
held = [take(total // 97) for _ in range(60)]
del held[::2]
torch.cuda.synchronize()
deadline, began = time.monotonic() + 60, time.time()
while time.monotonic() < deadline:
    shots = [shot for device in sample().devices for shot in device.snapshots if shot.time > began]
    if shots: break
    time.sleep(0.05)
largest = shots[-1].measured.largest_allocatable
def fits(size):
    try: return take(size).numel() == size
    except torch.cuda.OutOfMemoryError: return False
print(json.dumps({"total": total, "fails": fits(largest + 512), "fits": fits(largest)}))
"""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    found = run(scene, SIZE=size, FREE=size)
    assert (found["fails"], found["fits"]) == (False, True)
    assert found["total"] == (1536 * GIB if size == "1.5TiB" else int(9.75 * GIB))
