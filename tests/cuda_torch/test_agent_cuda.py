"""The agent in real torch, at an interval that would be far too short for a user."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufrag import agent
from gpufrag.agent.sources import Capture
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import ProcessSample

torch = pytest.importorskip("torch")
MIB = 1 << 20
Compare = Callable[[float, float], None]


class Witness(TorchSource):
    """The agent's own source. It records when the heap was copied, and each answer about graphs."""

    def __init__(self) -> None:
        super().__init__(torch, ErrorCounter())
        self.copied: list[float] = []
        self.graphs: list[bool] = []

    def _copy(self, events: bool) -> Capture | None:
        self.copied.append(time.time())
        return super()._copy(events)

    def graph_underway(self) -> bool:
        self.graphs.append(super().graph_underway())
        return self.graphs[-1]


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    """The source of an agent that takes 20 snapshots a second, without a limit on their cost."""
    torch.zeros(1, device="cuda")
    source = Witness()
    agent.start(source, interval=0.05, budget=1.0, folder=tmp_path)
    yield source
    agent.stop()


def sample_when(condition: Callable[[ProcessSample], object]) -> ProcessSample:
    """The first sample for which `condition` holds."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        found = agent.latest()
        if found is not None and condition(found):
            return found
        time.sleep(0.02)
    raise AssertionError(f"no such sample in 20 s: {agent.latest()}")


@pytest.fixture
def heap_with_gaps(witness: Witness) -> list[torch.Tensor]:
    held = [torch.empty(n * MIB, dtype=torch.uint8, device="cuda") for n in (1, 3, 30, 50)]
    del held[1:3]
    torch.cuda.synchronize()
    return held


def test_totals_equal_torchs_statistics(heap_with_gaps) -> None:
    began = time.time()
    found = sample_when(lambda s: s.devices and s.devices[0].totals.time > began).devices[0].totals
    stats = torch.cuda.memory_stats()
    for family in ("allocated", "active", "requested", "reserved", "inactive_split"):
        for pool in ("large", "small"):
            assert getattr(getattr(found, pool), family) == stats[f"{family}_bytes.{pool}_pool.current"], (family, pool)
    assert found.peak_active == stats["active_bytes.all.peak"]
    assert found.counters.device_allocs == stats["num_device_alloc"]


def test_snapshot_equals_torchs_segments(heap_with_gaps) -> None:
    began = time.time()
    found = sample_when(lambda s: s.devices and any(shot.time > began for shot in s.devices[0].snapshots))
    measured = max(found.devices[0].snapshots, key=lambda shot: shot.time).measured
    segments = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == (0, 0)]
    free = [block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "inactive"]
    assert measured.largest_free_block == max(free)
    assert measured.free_cached == sum(free)
    assert measured.large.segments + measured.small.segments == len(segments)


def test_private_pool_and_device_uuid_are_published(witness: Witness) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    found = sample_when(lambda s: s.devices and s.devices[0].snapshots and _reserved(s) == reserved and _free_now(s))
    device = found.devices[0]
    assert max(shot.measured.private_pool_reserved for shot in device.snapshots) >= 30 * MIB
    assert device.uuid.startswith("GPU-")
    assert found.health.errors == {}
    del inside


def _free_now(sample: ProcessSample) -> bool:
    """Whether the driver's figure is the present one: other processes may use the device too."""
    driver = sample.devices[0].driver
    return driver is not None and abs(driver.free - torch.cuda.mem_get_info()[0]) < 64 * MIB


def _reserved(sample: ProcessSample) -> int:
    return max(snapshot.measured.reserved for snapshot in sample.devices[0].snapshots)


def test_snapshots_during_a_capture_do_not_break_it(witness: Witness, assert_computed: Compare) -> None:
    static = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    before, added = len(witness.copied), 0
    with torch.cuda.graph(graph):
        result = static
        while len(witness.copied) < before + 3:
            result = result + 1
            added += 1
            assert added < 2000, "the agent took no snapshot meanwhile"
            time.sleep(0.01)
    graph.replay()
    torch.cuda.synchronize()
    assert_computed(result[0].item(), added)


def test_captured_step_is_not_sampled_and_later_ones_are(witness: Witness, assert_computed: Compare) -> None:
    weights = torch.ones(1024, device="cuda", requires_grad=True)
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.SGD([weights], lr=1.0)
    optimizer.step()
    graph, captured = torch.cuda.CUDAGraph(), 0
    with torch.cuda.graph(graph):
        while True not in witness.graphs:
            optimizer.step()
            captured += 1
            assert captured < 2000, "no snapshot was due meanwhile"
            time.sleep(0.002)
    graph.replay()
    torch.cuda.synchronize()
    assert_computed(weights[0].item(), -captured)  # a captured step happens at the replay
    deadline = time.monotonic() + 20
    while witness.graphs[-1] and time.monotonic() < deadline:
        optimizer.step()
        time.sleep(0.01)
    assert not witness.graphs[-1]


def test_steps_are_counted_and_sampled_at_boundaries(witness: Witness) -> None:
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(300):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    found = sample_when(lambda s: (s.steps or 0) >= 300)
    assert "boundary" in {snapshot.at for snapshot in found.devices[0].snapshots}


def test_data_loader_workers_do_not_publish(witness: Witness, tmp_path: Path) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(256))
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=4)
    seen = [value for (batch,) in loader if batch.cuda().is_cuda for value in batch.tolist()]
    assert sorted(seen) == list(range(256))
    assert len(list(tmp_path.glob("*.json"))) <= 1
