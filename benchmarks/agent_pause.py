"""How long a snapshot holds up a training process, by the number of blocks in its heap.

    PYTHONPATH=exporter python3 benchmarks/agent_pause.py [--out agent_pause.json]

The heap is many small tensors, every other one freed. `copy` is torch's snapshot, during which no thread runs Python;
`measure` is the agent's work on the copy, which shares the interpreter; `stats` is the cheap reading of every second.
Medians, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from gpufrag.agent.sources import connect
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.wire.error_counter import ErrorCounter

REPEATS = 15


def heap_of(blocks: int) -> list[torch.Tensor]:
    """Small tensors that leave `blocks` blocks: live and free ones by turns."""
    tensors = [torch.empty(1024, dtype=torch.uint8, device="cuda") for _ in range(blocks)]
    return tensors[::2]


def sample(blocks: int) -> dict[str, Any]:
    source = connect(torch, ErrorCounter())
    held = heap_of(blocks)
    copies, works, stats = [], [], []
    found = 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        source.read()
        stats.append(time.perf_counter() - began)
        capture = source.capture()
        assert capture is not None
        copies.append(capture.held)
        began = time.perf_counter()
        heap = capture.heap().on_device(0)
        measure(heap, Driver(1 << 36, 1 << 37))
        works.append(time.perf_counter() - began)
        found = sum(len(segment.sizes) for segment in heap.segments)
    del held
    figures = {"copy": copies, "measure": works, "stats": stats}
    return {"blocks": found, **{name: statistics.median(values) * 1e3 for name, values in figures.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    rows = [sample(blocks) for blocks in (1_000, 10_000, 100_000)]
    for row in rows:
        print(f"{row['blocks']:>8,} blocks: copy {row['copy']:.2f} ms, measure {row['measure']:.2f} ms, "
              f"stats {row['stats']:.3f} ms")  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
