"""Programs with a known fault, run on the simulated allocator and dumped as torch does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import INACTIVE
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.blocks import Block
from simulated_trace import Recorder

MIB = 1 << 20
Frames = list[dict[str, Any]]
Program = Callable[["Process"], None]


def frames_at(line: int, file: str = "/job/train.py", function: str = "step") -> Frames:
    own = {"filename": file, "line": line, "name": function}
    return [{"filename": "/env/site-packages/torch/nn/modules/module.py", "line": 7, "name": "forward"}, own]


OPTIMIZER: Frames = [
    {"filename": "/env/site-packages/torch/optim/adamw.py", "line": 9, "name": "_init_group"},
    *frames_at(60)[1:],
]


class Process:
    """Allocates with a stack, and dumps a snapshot with history."""

    def __init__(self, driver: Driver = Driver(), settings: Settings = Settings()) -> None:
        self.allocator = Recorder(settings, driver)
        self._frames: list[Frames] = []
        self._of_block: dict[int, Frames] = {}

    def malloc(self, size: int, line: int, *, frames: Frames | None = None, stream: int = 0) -> Block:
        block = self.allocator.malloc(size, stream)
        assert block is not None
        self._note(frames or frames_at(line))
        self._of_block[block.address] = self._frames[-1]
        return block

    def free(self, *blocks: Block) -> None:
        for block in blocks:
            self.allocator.free(block)
        self._note([])

    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        self._note([{"filename": "/env/site-packages/torch/cuda/memory.py", "line": 3, "name": "empty_cache"}])

    def _note(self, frames: Frames) -> None:
        self._frames += [frames] * (len(self.allocator.trace) - len(self._frames))

    def snapshot(self) -> dict[str, Any]:
        entries = [
            {"action": e.action, "addr": e.address, "size": e.size, "stream": e.stream, "time_us": 10 * n, "frames": f}
            for n, (e, f) in enumerate(zip(self.allocator.trace, self._frames))
        ]
        segments = []
        for segment in self.allocator.heap().segments:
            blocks = [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": block.state,
                    "frames": [] if block.state is INACTIVE else self._of_block[block.address],
                }
                for block in segment.blocks()
            ]
            segments.append(
                {
                    "device": 0,
                    "address": segment.address,
                    "total_size": segment.size,
                    "stream": segment.stream,
                    "segment_type": "small" if segment.small else "large",
                    "segment_pool_id": segment.pool,
                    "is_expandable": segment.expandable,
                    "blocks": blocks,
                }
            )
        return {"segments": segments, "device_traces": [entries], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}


def healthy(process: Process) -> None:
    """Parameters, then steps of equal shapes that free all they allocate."""
    for _ in range(10):
        process.malloc(40 * MIB, 1)
    for _ in range(30):
        process.free(*[process.malloc(20 * MIB, 10 + n) for n in range(8)])


def growing_cache(process: Process) -> None:
    """Each step keeps a tensor of 2 MiB (line 20) in the middle of large ones."""
    for _ in range(40):
        large = [process.malloc(8 * MIB, 10) for _ in range(2)]
        process.malloc(2 * MIB, 20)
        process.free(*large)
        process.malloc(30 * MIB, 11)


def dynamic_shapes(process: Process) -> None:
    """Activations (line 30) have another size in each step; parameters of line 2 lie between them."""
    chance = random.Random(3)
    kept = []
    for step in range(60):
        size = chance.randrange(12, 90) * MIB
        block = process.malloc(size, 30)
        if step % 6 == 0:
            kept.append(process.malloc(2 * MIB, 2))
        process.free(block)
        if step % 3 == 0:
            process.malloc(chance.randrange(2, 9) * MIB, 3)


def empties_cache(process: Process) -> None:
    process.malloc(40 * MIB, 1)
    for _ in range(10):
        process.free(process.malloc(64 * MIB, 10), process.malloc(128 * MIB, 11))
        process.empty_cache()


def keeps_losses(process: Process) -> None:
    """Line 40 keeps a tensor of each step."""
    for _ in range(50):
        process.free(process.malloc(40 * MIB, 10))
        process.malloc(3 * MIB, 40)


def late_optimizer(process: Process) -> None:
    """The optimizer's state is created after the first activations."""
    for _ in range(10):
        process.malloc(20 * MIB, 1)
    for step in range(20):
        activations = [process.malloc(24 * MIB, 10) for _ in range(4)]
        process.free(*activations[::2])
        if step == 3:
            for _ in range(20):
                process.malloc(10 * MIB, 60, frames=OPTIMIZER)
        process.free(*activations[1::2])


def large_temporary(process: Process) -> None:
    process.malloc(100 * MIB, 1)
    for _ in range(40):
        small = process.malloc(20 * MIB, 10)
        process.free(process.malloc(200 * MIB, 50))
        for _ in range(4):
            process.free(process.malloc(4 * MIB, 51))
        process.free(small)


def small_allocations(process: Process) -> None:
    process.malloc(100 * MIB, 1)
    for _ in range(1500):
        process.free(process.malloc(4096, 70))


PROGRAMS: dict[str, Program] = {
    "unused_share": dynamic_shapes,
    "dynamic_shapes": dynamic_shapes,
    "small_allocations": small_allocations,
    "empty_cache": empties_cache,
    "large_temporary": large_temporary,
    "late_optimizer_state": late_optimizer,
    "kept_across_steps": keeps_losses,
}
"""By the finding that each must have."""


def run(program: Program, driver: Driver = Driver()) -> dict[str, Any]:
    """Return the snapshot that the program dumps."""
    process = Process(driver)
    program(process)
    return process.snapshot()
