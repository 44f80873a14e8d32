"""Torch's other allocators and its private pools."""

import pytest

from gpufrag.agent.torch.source import TorchSource
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.wire.error_counter import ErrorCounter

torch = pytest.importorskip("torch")
MIB = 1 << 20
ASYNC = """
import json, threading
import torch
from dataclasses import asdict
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter
errors = ErrorCounter()
source = TorchSource(torch, errors)
kept = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 20, 300)]
torch.cuda.synchronize()
weight = torch.nn.Parameter(torch.zeros(8, device="cuda"))
weight.grad = torch.zeros_like(weight)
assert source.watch_steps(lambda optimizer: None)
torch.optim.SGD([weight], lr=0.1).step()
stats, (reading,) = torch.cuda.memory_stats(), source.read()
graph, over, reads = torch.cuda.CUDAGraph(), threading.Event(), []
def read():
    while not over.is_set():
        reads.append(len(source.read()))
thread = threading.Thread(target=read)
thread.start()
x = torch.ones(1 << 20, device="cuda")
(x * 2).sum()
with torch.cuda.graph(graph):
    y = (x * 2 + 1).sum()
graph.replay()
torch.cuda.synchronize()
over.set(); thread.join()
names = ("allocated", "active", "reserved")
print(json.dumps({
    "ours": {name: getattr(reading.sums, name) for name in names},
    "torch": {name: stats[f"{name}_bytes.all.current"] for name in names},
    "backend": source.facts(0).backend, "capture": source.capture(), "totals": reading.totals,
    "graph": float(y), "reads": len(reads), "errors": errors.counts,
}))
"""


def test_cuda_malloc_async_sums_are_read_during_a_capture(run_json, assert_computed) -> None:
    found = run_json(ASYNC, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert found["ours"] == found["torch"]
    assert found["ours"]["allocated"] >= 321 * MIB
    assert (found["backend"], found["capture"], found["totals"]) == ("cudaMallocAsync", None, None)
    assert found["errors"] == {}
    assert_computed(found["graph"], 3.0 * MIB)
    assert found["reads"] > 0


def test_free_bytes_of_a_private_pool_are_captive() -> None:
    torch.cuda.empty_cache()
    source = TorchSource(torch, ErrorCounter())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        freed = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    del freed
    source.read()
    found = measure(source.capture().heap().on_device(0), Driver())
    assert found.private_pool_reserved >= 96 * MIB
    assert 32 * MIB <= found.captive <= found.private_pool_reserved - kept.numel()
