"""Snapshots at a step's peak, in real torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufrag import agent
from gpufrag.agent.torch import stats as torch_stats
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import ProcessSample

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
MIB = 1 << 20
Compare = Callable[[float, float], None]
PATIENCE = 60.0


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[None]:
    """An agent with windows of a tenth of a second, each of which may cost what one of ten seconds may."""
    torch.cuda.empty_cache()
    torch.zeros(1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    agent.start(interval=0.1, budget=0.1, folder=tmp_path)
    yield
    agent.stop()


class Stack:
    """Layers that keep their inputs for the backward pass: memory rises, peaks in between, and falls."""

    def __init__(self, layers: int = 24) -> None:
        self.model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(layers))
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, rows: int) -> None:
        self.model(torch.randn(rows, 1024, device="cuda")).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def trained_until(stack: Stack, condition: object, rows: int = 32_768) -> ProcessSample:
    """Steps until a sample of the agent meets `condition`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        stack.step(rows)
        found = agent.latest()
        if found is not None and condition(found):  # type: ignore[operator]
            return found
    raise AssertionError(f"no such sample in {PATIENCE} s: {agent.latest()}")


def at_peak(sample: ProcessSample) -> int:
    """Active bytes of the snapshot at a peak; 0 where there is none."""
    shots = sample.devices[0].snapshots if sample.devices else ()
    return next((shot.measured.active for shot in shots if shot.at == "peak"), 0)


def test_level_equals_torchs_statistics() -> None:
    held = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    level = TorchSource(torch, ErrorCounter()).level(torch.cuda.current_device())
    stats = torch.cuda.memory_stats()
    assert level is not None
    assert level.active == stats["active_bytes.all.current"] >= held.numel()
    assert level.allocations == stats["allocation.all.allocated"] > 0
    assert level.peak_active == stats["active_bytes.all.peak"]
    assert torch_stats.level(torch.cuda.memory_stats_as_nested_dict()) == level


def test_peak_of_a_training_step_is_sampled(watched: None) -> None:
    stack = Stack()
    found = trained_until(stack, lambda sample: at_peak(sample) > 0)
    assert found.peak_method not in (None, "timer")
    totals = found.devices[0].totals
    assert totals is not None
    found = trained_until(stack, lambda sample: at_peak(sample) > 0.8 * totals.peak_active)
    assert {shot.at for shot in found.devices[0].snapshots} >= {"boundary", "peak"}
    assert found.health.errors == {}


def test_torchs_own_peaks_are_not_reset(watched: None) -> None:
    stack = Stack()
    stack.step(65_536)
    before = torch.cuda.memory_stats()["active_bytes.all.peak"]
    trained_until(stack, lambda sample: at_peak(sample) > 0, rows=8_192)
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] == before


def test_step_without_allocations_has_no_peak(watched: None) -> None:
    weights = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    weights.grad = torch.zeros_like(weights)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        optimizer.step()
        time.sleep(0.005)
        found = agent.latest()
        if found and found.devices and {shot.at for shot in found.devices[0].snapshots} == {"boundary", "timer"}:
            assert found.peak_method == "timer"
            return
    raise AssertionError(f"no snapshot by chance in {PATIENCE} s: {agent.latest()}")


def test_capture_is_not_broken_while_steps_are_sampled(watched: None, assert_computed: Compare) -> None:
    stack = Stack(layers=4)
    trained_until(stack, lambda sample: at_peak(sample) > 0, rows=1024)
    static = torch.zeros(1024, device="cuda")
    graph, added = torch.cuda.CUDAGraph(), 200
    stack.optimizer.step()
    with torch.cuda.graph(graph):
        result = static
        for _ in range(added):
            result = result + 1
            time.sleep(0.002)
    graph.replay()
    torch.cuda.synchronize()
    assert_computed(result[0].item(), added)
