"""A rank that trains, saves and resumes (torch on a CPU, gloo), with the simulator as its allocator.

    torchrun --nproc-per-node 2 simulated_trainer.py

Until step ODD_STEPS, rank 1 is fed lengths that break its heap up; that heap it keeps until its process ends. What it
does is written to `rank<N>.log` in $TRAINER_DIR, a line of JSON each.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed

import gpufrag
from gpufrag import agent
from gpufrag.checkpoint.participant import CheckpointRequest
from gpufrag.demo.source import SimulatedSource
from gpufrag.demo.traces import load
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.program import Replay

ODD_STEPS = 80
STEP_S = 0.05
ODD, EVEN = "cache-default", "train-cap4"
WHERE = Path(os.environ["TRAINER_DIR"])


class Heap:
    """The allocator of one process: what its steps ask for is a recorded trace, played over ODD_STEPS steps."""

    def __init__(self, rank: int, step: int) -> None:
        trace = load(ODD if rank == 1 and step < ODD_STEPS else EVEN)
        allocator = Allocator(trace.settings, trace.driver)
        self._lock, self._replay, self._begun = threading.Lock(), Replay(trace.program, allocator), step
        self._operations = len(trace.program.operations)
        self.source = SimulatedSource(allocator, self._lock, f"GPU-{rank}", trace.alloc_conf)

    def play(self, step: int) -> None:
        done = min(1.0, (step - self._begun) / ODD_STEPS)
        with self._lock:
            self._replay.run(until=int(self._operations * done))


class Trainer:
    """A model of eight weights, and where it is kept."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._log = (WHERE / f"rank{rank}.log").open("a", encoding="utf-8")

    def tell(self, event: str) -> None:
        weights = b"".join(bytes(row.untyped_storage()) for row in self.model.state_dict().values())
        line = {"event": event, "step": self.step, "weights": hashlib.sha256(weights).hexdigest()}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()

    def resume(self) -> None:
        path = WHERE / "checkpoint.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step = saved["step"]
        self.tell("begin")

    def save(self, request: CheckpointRequest) -> str:
        """Collective, as a sharded save is: a rank that is not at this step would hang it."""
        torch.distributed.barrier()
        path = WHERE / "checkpoint.pt"
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": request.step}
            torch.save(state, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
        torch.distributed.barrier()
        self.tell("save")
        return str(path)

    def train_a_step(self) -> None:
        generator = torch.Generator().manual_seed(self.step)
        loss = self.model(torch.rand(4, 8, generator=generator)).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.tell("step")


def main() -> None:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = Trainer(torch.distributed.get_rank())
    trainer.resume()
    heap = Heap(trainer.rank, trainer.step)
    agent.start(source=heap.source)
    gpufrag.on_checkpoint(trainer.save)
    while True:
        trainer.train_a_step()
        heap.play(trainer.step)
        heap.source.step()
        gpufrag.step_ended(trainer.step)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
