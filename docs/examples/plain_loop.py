"""A training loop that saves on request and resumes from the last checkpoint. Requires gpufrag and torch.

gpufrag run -- torchrun --nproc-per-node 2 --max-restarts 3 docs/examples/plain_loop.py checkpoints
"""

import os
import sys
from pathlib import Path

import torch

import gpufrag

folder = Path(sys.argv[1])
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
folder.mkdir(exist_ok=True)
latest = folder / "latest.pt"

model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
done = 0
if latest.exists():
    state = torch.load(latest)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    done = state["step"]


@gpufrag.on_checkpoint
def save(request):
    if os.environ.get("RANK", "0") != "0":
        return None  # rank 0 saves the whole model; if the model is sharded, every rank must save
    state = {"step": request.step, "model": model.state_dict()}
    state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    unfinished = latest.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(latest)  # atomic: the checkpoint is never incomplete
    return latest


for step in range(done + 1, steps + 1):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    gpufrag.step_ended(step)  # after the scheduler, so that the checkpoint contains its step
