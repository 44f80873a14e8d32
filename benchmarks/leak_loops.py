"""The training loops of benchmarks/leak_detection.py: some leak, six only look like it.

    python3 leak_loops.py NAME STEPS

Run it under `gpufrag run`. Prints one line of JSON: the step at which the agent reported a leak, and what it published.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from gpufrag import agent

LENGTH = 0.06
"""Seconds that a step takes at the least."""
WIDTH, LAYERS, BATCH = 1024, 8, 64
KEPT = 2_000_000
LATE = 200
"""The step at which the later leak begins."""
GROWS_FOR = 150
"""Steps in which the sequences become longer."""
LONGER = 512
"""Rows by which they do: 2 MB a step."""


class Loop:
    """A plain training; what makes each loop a special one happens in `extra`, after each step."""

    rows = BATCH
    accumulate = 1

    def __init__(self) -> None:
        blocks = (
            torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.model: Any = torch.nn.Sequential(*blocks).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.kept: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None

    def step(self, number: int) -> None:
        for _ in range(self.accumulate):
            self.last = self.model(torch.randn(self.rows_at(number), WIDTH, device="cuda"))
            self.last.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.extra(number)

    def rows_at(self, number: int) -> int:
        return self.rows

    def extra(self, number: int) -> None:
        """Nothing, in a plain training."""


class Leak(Loop):
    def extra(self, number: int) -> None:
        self.kept.append(torch.zeros(KEPT, dtype=torch.uint8, device="cuda"))


class LateLeak(Leak):
    def extra(self, number: int) -> None:
        if number >= LATE:
            super().extra(number)


class LeakWithHistory(Leak):
    def __init__(self) -> None:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=10_000)
        super().__init__()


class Evaluation(Loop):
    def extra(self, number: int) -> None:
        if number % 20 == 19:
            with torch.no_grad():
                outputs = [self.model(torch.randn(4 * BATCH, WIDTH, device="cuda")) for _ in range(10)]
                torch.cat(outputs).square().mean().item()


class GrowingSequence(Loop):
    """The next batch is made before the step ends, and becomes longer with the sequences."""

    following: torch.Tensor | None = None

    def extra(self, number: int) -> None:
        self.following = None
        self.following = torch.randn(LONGER * (1 + min(number, GROWS_FOR)), WIDTH, device="cuda")


class Accumulation(Loop):
    accumulate = 4


class AveragedWeights(Loop):
    """Begun late, and one tensor a parameter at once."""

    average: Any = None

    def extra(self, number: int) -> None:
        if number == 50:
            self.average = copy.deepcopy(self.model)
        if self.average is not None:
            with torch.no_grad():
                for mean, value in zip(self.average.parameters(), self.model.parameters()):
                    mean.lerp_(value, 0.01)


class Checkpoints(Loop):
    """The last one is kept on the device until the next one replaces it."""

    saved: dict[str, torch.Tensor] | None = None

    def extra(self, number: int) -> None:
        if number % 50 == 49:
            self.saved = {name: value.clone() for name, value in self.model.state_dict().items()}
            torch.save(self.saved, io.BytesIO())


class Compiled(Loop):
    """Compiled anew for some batch sizes; the model is small, for compiling takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.compile(self.model[:2])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def rows_at(self, number: int) -> int:
        return BATCH * (1 + min(number // 10, 4))


LOOPS: dict[str, Callable[[], Loop]] = {
    "leak": Leak,
    "leak with history": LeakWithHistory,
    "leak from step 200": LateLeak,
    "evaluation every 20 steps": Evaluation,
    "sequences that grow and settle": GrowingSequence,
    "gradient accumulation": Accumulation,
    "average of the weights": AveragedWeights,
    "checkpoints": Checkpoints,
    "compiled model": Compiled,
}
LEAKING = ("leak", "leak with history", "leak from step 200")


class LeakLog(logging.Handler):
    """What the agent logged, and at which step."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if re.search("gr[eo]w", record.getMessage()):
            self.lines.append((self.step, record.getMessage()))


def run(loop: Loop, steps: int, log: LeakLog) -> dict[str, Any]:
    published = None
    began = time.perf_counter()
    for number in range(steps):
        until = time.perf_counter() + LENGTH
        loop.step(number)
        torch.cuda.synchronize()
        log.step = number + 1
        if published is None and any(leak and leak.rate > 0 for leak in _leaks()):
            published = number + 1
        time.sleep(max(0.0, until - time.perf_counter()))
    return {"step_seconds": (time.perf_counter() - began) / steps, "published_at": published}


def _leaks() -> list[Any]:
    sample = agent.latest()
    return [device.leak for device in sample.devices] if sample else []


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    log = LeakLog()
    logging.getLogger("gpufrag").addHandler(log)
    result = run(LOOPS[name](), steps, log)
    sample = agent.latest()
    assert sample is not None, "there is no agent: run it under gpufrag run"
    leak = next((leak for leak in _leaks() if leak), None)
    print(
        json.dumps(
            result
            | {
                "logged_at": log.lines[0][0] if log.lines else None,
                "lines": [line for _, line in log.lines],
                "last": asdict(leak) if leak else None,
                "agent_steps": sample.steps,
                "stall_seconds": sample.health.stall_seconds,
                "errors": sample.health.errors,
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name(),
            }
        )
    )


if __name__ == "__main__":
    main()
