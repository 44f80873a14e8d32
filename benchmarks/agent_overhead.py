"""What the agent costs a training job: paired stretches of a training loop with and without it.

    PYTHONPATH=exporter python3 -m gpufrag run -- python3 benchmarks/agent_overhead.py [--out agent_overhead.json]

One process under `gpufrag run` trains a decoder on batches of varying length. Each pair is two stretches of about eight
seconds that do exactly the same work, one with the agent as it came and one with it stopped, in alternating order.
Printed is the geometric mean of the ratios of step times (with over without) and its 95 % confidence interval.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from workloads import Decoder

from gpufrag import agent

T_95 = {7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 13: 2.160, 15: 2.131}
"""Student's t for 95 %, both sides, by degrees of freedom."""
SETTLE_STEPS = 5
STRETCH_SECONDS = 8.0
"""The agent takes a snapshot as it starts and one every ten seconds: each stretch with it holds one or two."""


class Loop:
    """A bf16 decoder with AdamW, wide enough for the GPU to be what a step waits for: a host's speed is no constant."""

    def __init__(self) -> None:
        self._model = Decoder(width=2304, layers=12).to("cuda", torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5)

    def seconds_per_step(self, steps: int) -> float:
        """The same batches every time."""
        rng = random.Random(7)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            tokens = torch.randint(0, 16_000, (rng.randrange(8, 33), rng.randrange(64, 512)), device="cuda")
            self._model.loss(tokens).backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / steps


def pair(loop: Loop, steps: int, agent_first: bool) -> dict[str, float]:
    times = {}
    for with_agent in (agent_first, not agent_first):
        agent.start() if with_agent else agent.stop()
        loop.seconds_per_step(SETTLE_STEPS)  # what beginning and ending cost once is no share of a step
        times[with_agent] = loop.seconds_per_step(steps)
        if with_agent:
            check(steps)
    return {"with": times[True], "without": times[False], "ratio": times[True] / times[False]}


def check(steps: int) -> None:
    """That there was an agent, which saw the steps and took a snapshot."""
    sample = agent.latest()
    assert sample is not None, "no agent: run this under `gpufrag run`"
    assert sample.steps, "the agent saw no step"
    assert sample.devices[0].snapshots, "the agent took no snapshot"


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """(low, geometric mean, high)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = T_95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean), math.exp(mean + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, choices=sorted(degrees + 1 for degrees in T_95))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    loop = Loop()
    loop.seconds_per_step(60)
    steps = max(10, round(STRETCH_SECONDS / loop.seconds_per_step(40)))
    loop.seconds_per_step(steps)  # every batch size has been seen: the heap has its final shape
    pairs = []
    for number in range(options.pairs):
        pairs.append(pair(loop, steps, agent_first=number % 2 == 0))
        print(pairs[-1], file=sys.stderr, flush=True)
    agent.start()
    low, mean, high = interval([found["ratio"] for found in pairs])
    blocks = sum(len(segment["blocks"]) for segment in torch.cuda.memory_snapshot())
    print(f"{steps} steps a stretch, {blocks} blocks")
    print(f"step time with the agent over without: {mean:.5f}, 95 % between {low:.5f} and {high:.5f}")
    if options.out:
        report = {"steps": steps, "blocks": blocks, "pairs": pairs, "ratio": mean, "low": low, "high": high}
        options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
