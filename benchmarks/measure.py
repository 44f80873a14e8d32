"""What it costs to read and measure a heap of 100,000 blocks: it is done inside the training process.

    make bench        (PYTHONPATH=exporter python3 benchmarks/measure.py [--blocks 100000] [--repeats 15])

Four shapes that 100,000 blocks can have, from few long segments to many short ones. Garbage collection stays on,
as it is in a training job. Prints the median and the slowest of the repeats, in milliseconds; exits with 1 where a
median is above --budget-ms (default 150).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import parse

MIB = 1 << 20
DRIVER = Driver(free=8 << 30, size=140 << 30, limit=None)
Result = TypeVar("Result")


class Shape(NamedTuple):
    """A share of the blocks in the small pool, and how many blocks a segment of either pool holds on average."""

    small_share: float
    small_per_segment: int
    large_per_segment: int
    expandable: bool = False


SHAPES = {
    "training": Shape(0.7, 40, 8),
    "inference": Shape(0.3, 60, 15),
    "expandable": Shape(0.5, 5000, 5000, expandable=True),
    "shredded": Shape(0.5, 5, 8),  # 16,000 segments: 145 GB at 2 and 20 MiB each, all that one GPU holds
}


def main() -> int:
    options = _options()
    print(f"{'shape':<12}{'segments':>9}{'parse ms':>10}{'measure ms':>12}{'sum ms':>8}{'slowest ms':>12}")
    sums = [_report(name, shape, options) for name, shape in SHAPES.items()]
    return int(max(sums) > options.budget_ms)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--budget-ms", type=float, default=150.0)
    return parser.parse_args()


def _report(name: str, shape: Shape, options: argparse.Namespace) -> float:
    snapshot = made_up(shape, options.blocks, random.Random(7))
    rows = [_once(snapshot) for _ in range(options.repeats)]
    parsing, measuring = (statistics.median(column) for column in zip(*rows))
    both = statistics.median(map(sum, rows))
    slowest = max(map(sum, rows))
    print(
        f"{name:<12}{len(snapshot['segments']):>9}{parsing:>10.1f}{measuring:>12.1f}{both:>8.1f}{slowest:>12.1f}",
        flush=True,
    )
    return both


def _once(snapshot: dict[str, Any]) -> tuple[float, float]:
    heap, parsing = _timed(lambda: parse(snapshot))
    _, measuring = _timed(lambda: measure(heap, DRIVER))
    return parsing, measuring


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.process_time()
    result = work()
    return result, (time.process_time() - start) * 1e3


def made_up(shape: Shape, blocks: int, rng: random.Random) -> dict[str, Any]:
    """A snapshot in torch's own form, frames included, in which every third block is free."""
    small = int(blocks * shape.small_share)
    segments: list[dict[str, Any]] = []
    address = 0x7F0000000000
    for is_small, count in ((True, small), (False, blocks - small)):
        average = shape.small_per_segment if is_small else shape.large_per_segment
        for length in _lengths(count, average, rng):
            segments.append(_segment(address, length, is_small, shape.expandable, rng))
            address += segments[-1]["total_size"] + 2 * MIB
    return {"segments": segments, "allocator_settings": {"expandable_segments": shape.expandable}}


def _lengths(total: int, average: int, rng: random.Random) -> Iterator[int]:
    while total > 0:
        length = min(total, max(1, round(average * rng.uniform(0.5, 1.5))))
        total -= length
        yield length


def _segment(address: int, length: int, small: bool, expandable: bool, rng: random.Random) -> dict[str, Any]:
    unit = 512 if small else 64 * 512
    states = rng.choices(["active_allocated", "inactive", "active_pending_free"], [66, 33, 1], k=length)
    sizes = [unit * rng.randint(1, 80) for _ in range(length)]
    sizes[-1] += -sum(sizes) % (2 * MIB)
    return {
        "device": 0,
        "address": address,
        "total_size": sum(sizes),
        "allocated_size": sum(size for size, state in zip(sizes, states) if state == "active_allocated"),
        "active_size": sum(size for size, state in zip(sizes, states) if state != "inactive"),
        "requested_size": sum(size - 100 for size, state in zip(sizes, states) if state != "inactive"),
        "stream": 0,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": expandable,
        "frames": [],
        "blocks": list(_blocks(address, sizes, states)),
    }


def _blocks(address: int, sizes: list[int], states: list[str]) -> Iterator[dict[str, Any]]:
    for size, state in zip(sizes, states):
        yield {"address": address, "size": size, "requested_size": size - 100, "state": state, "frames": []}
        address += size


if __name__ == "__main__":
    sys.exit(main())
