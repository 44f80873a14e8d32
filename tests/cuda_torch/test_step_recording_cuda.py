"""Recorded steps in real torch: the peak is torch's own, and the program's history is left alone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufrag import agent
from gpufrag.agent.torch.source import TorchSource
from gpufrag.model.call_sites import grown
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import ProcessSample

torch = pytest.importorskip("torch")
Compare = Callable[[float, float], None]
PATIENCE = 60.0


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[None]:
    """An agent with windows of a tenth of a second, which may cost more than by default."""
    torch.cuda.empty_cache()
    torch.zeros(1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    agent.start(interval=0.1, budget=0.5, folder=tmp_path)
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


def trained_until(condition: Callable[[ProcessSample], bool], stack: Stack, rows: int = 8192) -> ProcessSample:
    """Steps until a sample of the agent meets `condition`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        stack.step(rows)
        found = agent.latest()
        if found is not None and condition(found):
            return found
    raise AssertionError(f"no such sample in {PATIENCE} s: {agent.latest()}")


def at_peak(sample: ProcessSample) -> int:
    """Active bytes of the snapshot at a peak; 0 if there is none."""
    shots = sample.devices[0].snapshots if sample.devices else ()
    return next((shot.measured.active for shot in shots if shot.at == "peak"), 0)


def test_peak_of_a_step_is_torchs_own(watched: None) -> None:
    stack = Stack()
    for _ in range(3):
        stack.step(8192)
    torch.cuda.reset_peak_memory_stats()
    stack.step(8192)
    true_peak = torch.cuda.memory_stats()["active_bytes.all.peak"]
    found = trained_until(lambda sample: at_peak(sample) == true_peak, stack)
    assert found.health.errors == {}
    assert found.health.recordings.keys() <= {"recorded"}


def test_torchs_peaks_are_left_alone(watched: None) -> None:
    stack = Stack()
    stack.step(65_536)
    before = torch.cuda.memory_stats()["active_bytes.all.peak"]
    trained_until(lambda sample: at_peak(sample) > 0, stack)
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] == before


def test_history_of_the_program_is_left_alone(watched: None) -> None:
    stack = Stack(layers=2)
    trained_until(lambda sample: at_peak(sample) > 0, stack, rows=64)
    torch.cuda.memory._record_memory_history()
    try:
        trained_until(lambda sample: sample.health.recordings.get("history_in_use", 0) > 1, stack, rows=64)
        assert any(entry.get("frames") for entry in torch.cuda.memory._snapshot()["device_traces"][0])
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def test_history_is_off_and_unpatched_after_the_agent(watched: None) -> None:
    before = torch._C._cuda_record_memory_history
    trained_until(lambda sample: at_peak(sample) > 0, Stack(layers=2), rows=64)
    agent.stop()
    assert not torch._C._cuda_isHistoryEnabled()
    assert type(torch._C._cuda_record_memory_history) is type(before)


def test_process_without_steps_has_the_peak_of_a_slice(watched: None) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        found = agent.latest()
        if found and at_peak(found) >= 1 << 28:
            assert found.health.recordings.keys() <= {"recorded"}, "more than 100,000 events are no reason"
            return
    raise AssertionError(f"no peak of a slice in {PATIENCE} s: {agent.latest()}")


def test_lines_that_keep_memory_are_found_without_the_user() -> None:
    stack, kept = Stack(layers=2), []
    stack.step(64)
    source = TorchSource(torch, ErrorCounter())
    source.read()

    def step() -> None:
        stack.step(64)
        kept.append(torch.empty(1 << 22, dtype=torch.uint8, device="cuda"))

    assert source.start_stacks()
    copies = []
    for number in range(3):  # one line calls each step
        step()
        if number != 1:
            copies.append(source.allocated_since(stop=number == 2))
    first, last = copies
    assert first is not None
    assert last is not None
    found = grown(first()[0], last()[0])[0]
    assert (found.size, found.blocks) == (2 << 22, 2)
    assert found.stack[0].endswith(" step")
    assert not torch._C._cuda_isHistoryEnabled()


def test_recording_does_not_break_a_graph_capture(watched: None, assert_computed: Compare) -> None:
    stack = Stack(layers=4)
    trained_until(lambda sample: at_peak(sample) > 0, stack, rows=1024)
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
