"""A decoder's training loop with varying sequence length; prints the mean step time as JSON. For agent_overhead.py."""

from __future__ import annotations

import argparse
import json
import random
import time

import torch
from workloads import Decoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warm-up", type=int, default=40)
    options = parser.parse_args()
    rng = random.Random(7)
    model = Decoder(width=1152, layers=12).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    started = 0.0
    for step in range(options.warm_up + options.steps):
        if step == options.warm_up:
            torch.cuda.synchronize()
            started = time.perf_counter()
        tokens = torch.randint(0, 16_000, (rng.randrange(2, 9), rng.randrange(64, 512)), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    blocks = sum(len(segment["blocks"]) for segment in torch.cuda.memory_snapshot())
    seconds = (time.perf_counter() - started) / options.steps
    print(json.dumps({"seconds_per_step": seconds, "blocks": blocks, "loss": loss.item()}))


if __name__ == "__main__":
    main()
