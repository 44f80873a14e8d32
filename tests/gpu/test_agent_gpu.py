"""The agent in real torch on a real GPU, at an interval that would be far too short for a user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufrag import agent
from gpufrag.sample import ProcessSample

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
MIB = 1 << 20


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Path]:
    """An agent that snapshots 20 times a second and may take all the time in the world."""
    torch.zeros(1, device="cuda")
    agent.start(interval=0.05, budget=1.0, folder=tmp_path)
    yield tmp_path
    agent.stop()


def sample_when(condition: object, seconds: float = 20.0) -> ProcessSample:
    """The first sample for which `condition` holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = agent.latest()
        if found is not None and condition(found):  # type: ignore[operator]
            return found
        time.sleep(0.02)
    raise AssertionError(f"no such sample in {seconds} s: {agent.latest()}")


def test_figures_are_torch_s_own_and_private_pools_are_seen(watched: Path) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    outside = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    found = sample_when(lambda s: s.devices and s.devices[0].snapshots and _reserved(s) == reserved)
    device = found.devices[0]
    measured = device.snapshots[0].measured
    assert measured.private_pool_reserved >= 30 * MIB
    assert device.driver is not None
    assert abs(device.driver.free - torch.cuda.mem_get_info()[0]) < 64 * MIB
    assert device.uuid is not None
    assert device.uuid.startswith("GPU-")
    assert found.health.errors == {}
    del inside, outside


def _reserved(sample: ProcessSample) -> int:
    return max(snapshot.measured.reserved for snapshot in sample.devices[0].snapshots)


def test_a_graph_capture_goes_unharmed(watched: Path) -> None:
    static = torch.zeros(1024, device="cuda")
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = static
            for _ in range(2000):  # long enough for the agent to come in between
                result = result + 1
        graph.replay()
        torch.cuda.synchronize()
        assert result[0].item() == 2000.0
    assert agent.latest() is not None


def test_steps_are_counted_and_sampled_at_their_boundary(watched: Path) -> None:
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(300):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    found = sample_when(lambda s: (s.steps or 0) >= 300)
    assert "boundary" in {snapshot.at for snapshot in found.devices[0].snapshots}


def test_reduce_overhead_compiles_and_runs(watched: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    batch = torch.randn(32, 128, device="cuda")
    with torch.no_grad():
        expected = model(batch)
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(batch).clone()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_data_loader_with_workers_delivers_everything(watched: Path) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(256))
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=4)
    seen = sorted(value for (batch,) in loader for value in batch.cuda().tolist())
    assert seen == list(range(256))
    assert len(list(watched.glob("*.json"))) <= 1  # no worker publishes
