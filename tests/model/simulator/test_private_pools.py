"""Recorded heaps with a MemPool and with a CUDA graph's pool."""

from __future__ import annotations

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import INACTIVE, Heap, parse
from gpufrag.snapshot_file import load
from helpers import SNAPSHOTS


@pytest.fixture(params=["pools-streams", "graph-pool"])
def heap(request: pytest.FixtureRequest) -> Heap:
    return parse(load(SNAPSHOTS / f"{request.param}.pickle.gz"))


def _free(heap: Heap, *, private: bool) -> int:
    segments = (segment for segment in heap.segments if segment.private == private)
    return sum(block.size for segment in segments for block in segment.blocks() if block.state == INACTIVE)


def test_free_bytes_of_private_pools_are_captive(heap: Heap) -> None:
    found = measure(heap, Driver())
    assert found.captive == _free(heap, private=True) > 0
    assert found.free_cached == _free(heap, private=False)


def test_reserved_bytes_of_private_pools_are_separate(heap: Heap) -> None:
    found = measure(heap, Driver())
    private = sum(segment.size for segment in heap.segments if segment.private)
    assert found.private_pool_reserved == private > 0
    assert found.reserved == sum(segment.size for segment in heap.segments)


def test_private_pools_serve_no_other_request(heap: Heap) -> None:
    own = Heap(tuple(segment for segment in heap.segments if not segment.private), heap.settings)
    full = Driver(free=0, size=1 << 40)
    with_pools, without = measure(heap, full), measure(own, full)
    assert with_pools.largest_allocatable == without.largest_allocatable
    assert with_pools.free_total == without.free_total
