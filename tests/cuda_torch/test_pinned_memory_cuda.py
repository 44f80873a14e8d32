"""Pinned host memory in a snapshot, which torch records since 2.14."""

import pytest

SCENE = """
import inspect, json
import torch
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import parse
memory = torch.cuda.memory
option = "record_pinned_host_memory"
if option in inspect.signature(memory._record_memory_history_impl).parameters:
    memory._record_memory_history(max_entries=1000, **{option: True})
    held = [torch.empty(5 << 20, pin_memory=True, dtype=torch.uint8), torch.empty(3 << 20, device="cuda")]
    snapshot = memory._snapshot()
    found = measure(parse(snapshot), Driver())
    print(json.dumps({
        "host": sum(segment["total_size"] for segment in snapshot["host_segments"]) > 0,
        "same": found.reserved == torch.cuda.memory_reserved(),
    }))
else:
    print("{}")
"""


def test_pinned_host_memory_is_not_of_the_device(run_json) -> None:
    found = run_json(SCENE)
    if not found:
        pytest.skip("this release does not record pinned host memory")
    assert found == {"host": True, "same": True}
