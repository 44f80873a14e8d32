"""Out-of-memory errors on purpose, one a process: what `oom_verdicts.py` runs.

    python3 benchmarks/oom_stages.py STAGE

It loads torch, prints `ready`, and waits for a line on its input before it touches the device. Then it prepares what
its stage is about, makes the request that fails, and prints one line of JSON about it.
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
    """`prepare` receives a list for what must stay alive, and returns the bytes to request in the end."""

    cause: str
    prepare: Callable[[Held], float]
    conf: str = ""
    """PYTORCH_CUDA_ALLOC_CONF of the process."""
    neighbour: float = 0.0
    """The share of the device that another process holds meanwhile."""
    repeats: int = 1


def size() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def room() -> int:
    return torch.cuda.mem_get_info()[0]


def take(nbytes: float) -> torch.Tensor:
    return torch.empty(int(nbytes) // MIB * MIB, dtype=torch.uint8, device="cuda")


def pin(held: Held, another_fits: Callable[[], bool]) -> None:
    """Segments of 1 GiB that are free but for a live piece of each."""
    wide = []
    while another_fits():
        take(GIB)  # dropped at once: its segment stays in the cache, and is split
        wide.append(take(GIB - PIECE))
        held.append(take(PIECE))


def too_large_at_once(held: Held) -> float:
    return 1.5 * size()


def too_large_for_what_is_left(held: Held) -> float:
    held.append(take(0.8 * size()))
    return 0.5 * size()


def one_more_than_fits(held: Held) -> float:
    while room() > 3 * GIB:
        held.append(take(2 * GIB))
    return 4 * GIB


def far_above_the_cap(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.1)
    return 0.3 * size()


def a_little_above_the_cap(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.3)
    held.append(take(0.25 * size()))
    return 0.1 * size()


def one_more_than_the_cap(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.05)
    while torch.cuda.memory_reserved() + GIB < 0.05 * size():
        held.append(take(GIB))
    return 2 * GIB


def pinned_all_over_the_device(held: Held) -> float:
    pin(held, lambda: room() > 2 * GIB)
    return 4 * GIB


def pinned_below_a_cap(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.1)
    pin(held, lambda: torch.cuda.memory_reserved() + GIB < 0.1 * size())
    return 3 * GIB


def every_other_one_of_expandable_segments(held: Held) -> float:
    torch.cuda.set_per_process_memory_fraction(0.05)
    blocks = [take(12 * MIB) for _ in range(int(0.048 * size() / (12 * MIB)))]
    held += blocks[::2]
    return GIB


def half_beside_a_large_one(held: Held) -> float:
    return 0.5 * size()


def a_third_beside_half_and_a_third(held: Held) -> float:
    held.append(take(0.3 * size()))
    return 0.3 * size()


def a_little_beside_a_huge_one(held: Held) -> float:
    for _ in range(4):
        held.append(take(GIB))
    return 20 * GIB


def many_blocks(held: Held) -> float:
    """Small tensors, every other one freed."""
    blocks = [torch.empty(1024, dtype=torch.uint8, device="cuda") for _ in range(MANY_BLOCKS)]
    held += blocks[::2]
    return 1.5 * size()


STAGES = {
    "too_large_at_once": Stage("capacity", too_large_at_once),
    "too_large_for_what_is_left": Stage("capacity", too_large_for_what_is_left),
    "one_more_than_fits": Stage("capacity", one_more_than_fits),
    "far_above_the_cap": Stage("limit", far_above_the_cap),
    "a_little_above_the_cap": Stage("limit", a_little_above_the_cap),
    "one_more_than_the_cap": Stage("limit", one_more_than_the_cap),
    "pinned_all_over_the_device": Stage("fragmentation", pinned_all_over_the_device),
    "pinned_below_a_cap": Stage("fragmentation", pinned_below_a_cap),
    "every_other_one_of_expandable_segments": Stage(
        "fragmentation", every_other_one_of_expandable_segments, conf="expandable_segments:True"
    ),
    "half_beside_a_large_one": Stage("neighbours", half_beside_a_large_one, neighbour=0.7),
    "a_third_beside_half_and_a_third": Stage("neighbours", a_third_beside_half_and_a_third, neighbour=0.5),
    "a_little_beside_a_huge_one": Stage("neighbours", a_little_beside_a_huge_one, neighbour=0.88),
}
"""Three for each cause."""
PAUSE = Stage("capacity", many_blocks, repeats=REPEATS)


@contextlib.contextmanager
def neighbour(share: float) -> Iterator[None]:
    """Another process, without an agent, that holds this share of the device; none for 0."""
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
        assert process.stdout.readline() == "taken\n"
        yield
        process.stdin.close()


def fail(stage: Stage) -> list[float]:
    """Seconds that the failing request took, each time."""
    held: Held = []
    torch.zeros(1, device="cuda")
    wanted = stage.prepare(held)
    torch.cuda.synchronize()
    return [_refused(wanted) for _ in range(stage.repeats)]


def _refused(wanted: float) -> float:
    began = time.perf_counter()
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        take(wanted)
        sys.exit(f"a request for {wanted / GIB:.1f} GiB succeeded: this device is not as the stage expects it")
    return time.perf_counter() - began


def main(name: str) -> None:
    print("ready", flush=True)
    line = sys.stdin.readline()
    if name == "neighbour":
        held = take(float(line) * size())
        print("taken", flush=True)
        sys.stdin.read()
        del held
        return
    stage = PAUSE if name == "pause" else STAGES[name]
    with neighbour(stage.neighbour):
        print(json.dumps({"device": torch.cuda.get_device_name(), "seconds": fail(stage)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
