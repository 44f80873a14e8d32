"""How near the agent's samples come to a step's memory peak, and what they show before an out-of-memory error.

    PYTHONPATH=exporter python3 benchmarks/peak_sampling.py [--out peak_sampling.json] [--seconds 24] [--runs 10]

A decoder (12 layers of width 2304, bf16) trains on batches of one length, then of many; then a small one (8 of 768,
fp32), whose peak is the short spike of its loss. The true peak of each batch is torch's own, from a pass
without the agent that resets torch's peaks at each step; in the pass with the agent nobody resets them. The windows are
30 times as short as by default, and what one may cost is as much as by default (10 ms). Printed is active at the copy
over the true peak of that step (p10, p50, p90), of every copy at a peak from the first one on.

Then the small one trains, again and again, under a limit until memory fails: each step leaves a few small tensors
behind between the large ones, and drops others. Printed is the highest fragmentation ratio at a peak and at a boundary
in the last 50 steps beside the ratio at the error itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from witness import Witness, agent_of, measured
from workloads import MIB, Decoder

from gpufrag.agent.sources import Capture
from gpufrag.agent.torch.source import TorchSource

VOCABULARY = 16_000
DISTINCT = 48
LIMIT = 13 << 29
MOST_STEPS = 500
LAST_STEPS = 50
Shape = Callable[[random.Random], tuple[int, int]]


def fixed(rng: random.Random) -> tuple[int, int]:
    return 16, 384


def varying(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(8, 25), rng.randrange(64, 512)


KINDS: dict[str, tuple[bool, Shape]] = {
    "fixed": (False, fixed),
    "varying": (False, varying),
    "small, fixed": (True, fixed),
    "small, varying": (True, varying),
}
"""Whether the decoder is the small one, and the shape of a batch."""


class Training:
    def __init__(self, *, small: bool) -> None:
        self._model = Decoder().to("cuda") if small else Decoder(width=2304, layers=12).to("cuda", torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5)

    def step(self, batch: int, length: int, keep: Callable[[], None] = lambda: None) -> None:
        tokens = torch.randint(0, VOCABULARY, (batch, length), device="cuda")
        loss = self._model.loss(tokens)
        keep()
        loss.backward()
        self._optimizer.step()

    def between(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)


def true_peaks(training: Training, shapes: list[tuple[int, int]]) -> list[int]:
    """From one boundary to the next, as the agent's steps are."""
    peaks = []
    for shape in [*shapes, *shapes]:  # the first round fills the cache and makes the optimizer's state
        torch.cuda.reset_peak_memory_stats()
        training.between()
        training.step(*shape)
        peaks.append(torch.cuda.memory_stats()["active_bytes.all.peak"])
    return peaks[len(shapes) :]


def coverage(kind: str, seconds: float) -> dict[str, Any]:
    rng = random.Random(11)
    small, shape = KINDS[kind]
    shapes = [shape(rng) for _ in range(DISTINCT)]
    training = Training(small=small)
    peaks = true_peaks(training, shapes)
    steps, began = 0, time.perf_counter()
    with agent_of(10.0 / 30) as (source, agent):
        while time.perf_counter() - began < seconds:
            source.step = rng.randrange(DISTINCT)
            training.between()
            training.step(*shapes[source.step])
            steps += 1
        torch.cuda.synchronize()
        length = (time.perf_counter() - began) / steps
    found = [measured(copy.capture).active / peaks[copy.step] for copy in source.copies if copy.at == "peak"]
    latest = agent.latest
    return {
        "kind": kind,
        "step_seconds": length,
        "steps": steps,
        "copies": {at: sum(copy.at == at for copy in source.copies) for at in ("boundary", "peak", "timer")},
        "coverage": found,
        "boundary": [
            measured(copy.capture).active / peaks[copy.step] for copy in source.copies if copy.at == "boundary"
        ],
        "method": latest.peak_method if latest else None,
        "held_seconds_median": statistics.median(copy.capture.held for copy in source.copies),
        "stall_seconds": latest.health.stall_seconds if latest else {},
        "errors": latest.health.errors if latest else {},
    }


class Leftovers:
    """What a program keeps of each step: small tensors between the large ones; more come than go."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._kept: list[torch.Tensor] = []

    def keep(self) -> None:
        for _ in range(6):
            size = self._rng.randrange(int(1.1 * MIB), 6 * MIB)
            self._kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        for _ in range(4):
            self._kept.pop(self._rng.randrange(len(self._kept)))


def until_it_fails(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    training, leftovers = Training(small=True), Leftovers(rng)
    with agent_of(0.1) as (source, _):
        try:
            for step in range(MOST_STEPS):
                source.step = step
                training.between()
                training.step(rng.randrange(4, 13), rng.randrange(64, 512), leftovers.keep)
        except torch.OutOfMemoryError as error:
            capture = TorchSource.capture(source)
            return {"seed": seed, "step": source.step, "error": str(error)[:300], **ratios(source, capture)}
    return {"seed": seed, "step": MOST_STEPS, "error": None, **ratios(source, None)}


def ratios(source: Witness, at_error: Capture | None) -> dict[str, Any]:
    last = [copy for copy in source.copies if copy.step > source.step - LAST_STEPS]
    found: dict[str, Any] = {}
    for at in ("peak", "boundary"):
        some = [ratio for copy in last if copy.at == at and (ratio := measured(copy.capture).ratio)]
        found |= {f"{at}_ratio": max(some, default=None), f"{at}_samples": len(some)}
    if at_error is not None:
        fragmentation = measured(at_error)
        found |= {
            "error_ratio": fragmentation.ratio,
            "error_free_total": fragmentation.free_total,
            "error_largest_allocatable": fragmentation.largest_allocatable,
        }
    return found


def failures(runs: int) -> list[dict[str, Any]]:
    size = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(LIMIT / size)
    found = []
    for seed in range(runs):
        gc.collect()
        torch.cuda.empty_cache()
        found.append(until_it_fails(seed))
        print(row(found[-1]), flush=True)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return found


def row(run: dict[str, Any]) -> str:
    def shown(name: str) -> str:
        return f"{run[name]:.2f}" if run.get(name) else "none"

    return (
        f"run {run['seed']}: {'failed' if run['error'] else 'went on'} at step {run['step']}; ratio at a peak "
        f"{shown('peak_ratio')} ({run['peak_samples']}), at a boundary {shown('boundary_ratio')}, "
        f"at the error {shown('error_ratio')}"
    )


def summary(kind: dict[str, Any]) -> str:
    found = sorted(kind["coverage"]) or [math.nan]
    p10, p50, p90 = (found[math.ceil(share * len(found)) - 1] for share in (0.1, 0.5, 0.9))
    return (
        f"{kind['kind']}: coverage p10 {p10:.3f}, p50 {p50:.3f}, p90 {p90:.3f} by {kind['method']}; "
        f"step {kind['step_seconds'] * 1e3:.0f} ms; copies {kind['copies']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=24.0, help="of training for each kind of batch")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of batches")
    parser.add_argument("--runs", type=int, default=10, help="until memory fails")
    options = parser.parse_args()
    rows = []
    for kind in options.kinds:
        gc.collect()
        torch.cuda.empty_cache()
        rows.append(coverage(kind, options.seconds))
        print(summary(rows[-1]), flush=True)
    failed = failures(options.runs)
    if options.out:
        options.out.write_text(json.dumps({"coverage": rows, "failures": failed}, indent=1))


if __name__ == "__main__":
    main()
