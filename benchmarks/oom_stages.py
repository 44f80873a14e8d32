"""Cause one out-of-memory error on purpose; `oom_verdicts.py` runs this in one process per error.

    python3 benchmarks/oom_stages.py STAGE

Loads torch, prints `ready`, and waits for a line on stdin before it uses the device. Then it prepares the stage, makes
the request that fails, and prints one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

MIB = 1 << 20
GIB = 1 << 30
PIECE = 64 * MIB
MANY_BLOCKS = 10_000
REPEATS = 6
Held = list[torch.Tensor]


class Stage(NamedTuple):
    """`prepare` adds the tensors that must stay alive to a list, and returns the bytes of the failing request."""

    cause: str
    prepare: Callable[[Held], float]
    conf: str = ""
    """PYTORCH_CUDA_ALLOC_CONF of the process."""
    neighbour: float = 0.0
    """Share of the device that another process holds."""
    repeats: int = 1


def size() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def room() -> int:
    return torch.cuda.mem_get_info()[0]


def allocate(nbytes: float) -> torch.Tensor:
    return torch.empty(int(nbytes) // MIB * MIB, dtype=torch.uint8, device="cuda")


def pin(held: Held, has_room: Callable[[], bool]) -> None:
    """Fill memory with segments of 1 GiB that are free except for one live block each."""
    wide = []
    while has_room():
        allocate(GIB)  # freed at once: its segment stays in the cache and is split
        wide.append(allocate(GIB - PIECE))
        held.append(allocate(PIECE))


def request_above_device_size(held: Held) -> float:
    return 1.5 * size()


def request_above_free_memory(held: Held) -> float:
    held.append(allocate(0.8 * size()))
    return 0.5 * size()


def one_block_more_than_fits(held: Held) -> float:
    while room() > 3 * GIB:
        held.append(allocate(2 * GIB))
    return 4 * GIB


def request_far_above_limit(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.1)
    return 0.3 * size()


def request_just_above_limit(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.3)
    held.append(allocate(0.25 * size()))
    return 0.1 * size()


def one_block_more_than_limit(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.05)
    while torch.cuda.memory_reserved() + GIB < 0.05 * size():
        held.append(allocate(GIB))
    return 2 * GIB


def small_blocks_pin_the_device(held: Held) -> float:
    pin(held, lambda: room() > 2 * GIB)
    return 4 * GIB


def small_blocks_pin_memory_below_limit(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.1)
    pin(held, lambda: torch.cuda.memory_reserved() + GIB < 0.1 * size())
    return 3 * GIB


def every_second_block_of_expandable_segments_freed(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.05)
    blocks = [allocate(12 * MIB) for _ in range(int(0.048 * size() / (12 * MIB)))]
    held += blocks[::2]
    return GIB


def half_the_device_next_to_large_process(held: Held) -> float:
    return 0.5 * size()


def second_third_of_the_device_next_to_large_process(held: Held) -> float:
    held.append(allocate(0.3 * size()))
    return 0.3 * size()


def small_request_next_to_huge_process(held: Held) -> float:
    for _ in range(4):
        held.append(allocate(GIB))
    return 20 * GIB


def many_blocks(held: Held) -> float:
    """Allocate small tensors and free every second one."""
    blocks = [torch.empty(1024, dtype=torch.uint8, device="cuda") for _ in range(MANY_BLOCKS)]
    held += blocks[::2]
    return 1.5 * size()


STAGES = {
    "request_above_device_size": Stage("capacity", request_above_device_size),
    "request_above_free_memory": Stage("capacity", request_above_free_memory),
    "one_block_more_than_fits": Stage("capacity", one_block_more_than_fits),
    "request_far_above_limit": Stage("limit", request_far_above_limit),
    "request_just_above_limit": Stage("limit", request_just_above_limit),
    "one_block_more_than_limit": Stage("limit", one_block_more_than_limit),
    "small_blocks_pin_the_device": Stage("fragmentation", small_blocks_pin_the_device),
    "small_blocks_pin_memory_below_limit": Stage("fragmentation", small_blocks_pin_memory_below_limit),
    "every_second_block_of_expandable_segments_freed": Stage(
        "fragmentation", every_second_block_of_expandable_segments_freed, conf="expandable_segments:True"
    ),
    "half_the_device_next_to_large_process": Stage("neighbours", half_the_device_next_to_large_process, neighbour=0.7),
    "second_third_of_the_device_next_to_large_process": Stage(
        "neighbours", second_third_of_the_device_next_to_large_process, neighbour=0.5
    ),
    "small_request_next_to_huge_process": Stage("neighbours", small_request_next_to_huge_process, neighbour=0.88),
}
"""Three for each cause."""
PAUSE = Stage("capacity", many_blocks, repeats=REPEATS)


@contextlib.contextmanager
def other_process(share: float) -> Iterator[None]:
    """Run another process, without an agent, that holds this share of the device; none for 0."""
    if not share:
        yield
        return
    command, pipe = [sys.executable, __file__, "neighbour"], subprocess.PIPE
    quiet = {**os.environ, "GPUFRAG_DISABLE": "1"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=quiet) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        print(share, file=process.stdin, flush=True)
        assert process.stdout.readline() == "allocated\n"
        yield
        process.stdin.close()


def fail(stage: Stage) -> list[float]:
    """Return the seconds that each failing request took."""
    held: Held = []
    torch.zeros(1, device="cuda")
    size_bytes = stage.prepare(held)
    torch.cuda.synchronize()
    return [_failing_request(size_bytes) for _ in range(stage.repeats)]


def _failing_request(size_bytes: float) -> float:
    began = time.perf_counter()
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        allocate(size_bytes)
        sys.exit(f"a request for {size_bytes / GIB:.1f} GiB succeeded; this stage does not fit this device")
    return time.perf_counter() - began


def main(name: str) -> None:
    print("ready", flush=True)
    line = sys.stdin.readline()
    if name == "neighbour":
        held = allocate(float(line) * size())
        print("allocated", flush=True)
        sys.stdin.read()
        del held
        return
    stage = PAUSE if name == "pause" else STAGES[name]
    with other_process(stage.neighbour):
        print(json.dumps({"device": torch.cuda.get_device_name(), "seconds": fail(stage)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
