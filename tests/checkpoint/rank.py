"""A rank of torchrun: a small model in DDP on gloo, which saves with a collective. `SCENE` selects the fault.

Its agent's source is scripted, because there is no GPU; torch's own hook counts the steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import gpufrag
from fake_source import ScriptedSource
from gpufrag import agent

OUT, SCENE = Path(os.environ["OUT"]), os.environ.get("SCENE", "")
STEPS = 100_000


def again(life: str) -> None:
    """A restarted job must first be ready."""
    (OUT / f"trains-{life}-{os.environ['RANK']}").write_text(str(os.getpid()))
    while not (OUT / "stop").exists():
        time.sleep(0.02)


def main() -> None:
    if (life := os.environ["TORCHELASTIC_RESTART_COUNT"]) != "0":
        again(life)
        return
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    agent.start(source=ScriptedSource(steps=False), interval=5.0)

    def save(request: gpufrag.checkpoint.participant.CheckpointRequest) -> str:  # type: ignore[name-defined]
        steps: list[object] = [None] * size
        dist.all_gather_object(steps, request.step)
        path = OUT / f"{request.id}-{rank}.pt"
        torch.save({"step": request.step, "steps": steps, "model": model.module.state_dict()}, path)
        return str(path)

    if not (SCENE == "one without" and rank == 1):
        gpufrag.on_checkpoint(save)
    for step in range(STEPS):
        if SCENE == "slow" and rank == 1:
            time.sleep(0.02)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step == 5:
            (OUT / f"trains-{life}-{rank}").write_text(str(os.getpid()))
        (OUT / f"step-{rank}").write_text(str(step))
        if (OUT / "stop").exists():
            return


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # ranks see the file at different steps, without waiting for each other
