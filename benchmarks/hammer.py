"""Eight threads that allocate without a pause next to an agent that samples every 50 ms: does any of them stop?

    PYTHONPATH=exporter python3 -m gpufrag run --interval 0.05 --budget 0.5 -- python3 benchmarks/hammer.py

Each thread has its own stream, keeps some hundred tensors alive, shares some between streams, and reaches the memory
limit again and again, so the agent meets flushes, retries and out-of-memory errors. One thread also steps an
optimizer. Exits with 1 if a thread makes no progress for 30 s; prints the work done and what the agent published.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import sys
import threading
import time
from pathlib import Path

import torch

from gpufrag import agent

GIB, MIB = 1 << 30, 1 << 20
LIMIT = 6 * GIB
THREADS = 8
STUCK = 30.0
"""Seconds without a request by some thread: a deadlock."""
REPORT_EVERY = 20.0
"""Seconds."""


class Worker(threading.Thread):
    """Counts its requests; `beat` is when it made the last one."""

    def __init__(self, number: int, ending: threading.Event) -> None:
        super().__init__(name=f"hammer-{number}", daemon=True)
        self._chance, self._ending = random.Random(number), ending
        self._stepping = number == 0
        self.beat = time.monotonic()
        self.requests = self.failed = 0

    def run(self) -> None:
        live: list[torch.Tensor] = []
        weight = torch.nn.Parameter(torch.zeros(1024, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        other = torch.cuda.Stream()
        with torch.cuda.stream(torch.cuda.Stream()):
            while not self._ending.is_set():
                self._turn(live, other)
                if self._stepping and self.requests % 50 == 0:
                    weight.grad = torch.ones_like(weight)
                    optimizer.step()

    def _turn(self, live: list[torch.Tensor], other: torch.cuda.Stream) -> None:
        size = self._chance.choice((512, 40_000, 3 * MIB, 30 * MIB, 150 * MIB))
        try:
            live.append(torch.empty(size + self._chance.randrange(size), dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            self.failed += 1
            del live[: len(live) // 2]
        if self._chance.random() < 0.1 and live:
            self._chance.choice(live).record_stream(other)
        if len(live) > 100 or self._chance.random() < 0.3:
            first = self._chance.randrange(max(1, len(live)))
            del live[first : first + 3]
        self.requests += 1
        self.beat = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
    ending = threading.Event()
    workers = [Worker(number, ending) for number in range(THREADS)]
    begun = time.monotonic()
    for worker in workers:
        worker.start()
    until, stuck, passed = begun + options.seconds, list[str](), 0.0
    while not stuck and passed < options.seconds:
        stuck = watch(workers, min(until, time.monotonic() + REPORT_EVERY))
        passed = time.monotonic() - begun
        report = json.dumps(as_record(workers, passed, stuck), indent=1)
        if options.out:  # again and again: a machine may be taken away before the end
            options.out.write_text(report + "\n")
    ending.set()
    print(report)
    return int(bool(stuck))


def watch(workers: list[Worker], until: float) -> list[str]:
    """The names of threads that stopped; their stacks, and all others', go to stderr."""
    while time.monotonic() < until:
        time.sleep(1)
        if stuck := [w.name for w in workers if time.monotonic() - w.beat > STUCK or not w.is_alive()]:
            faulthandler.dump_traceback(all_threads=True)
            return stuck
    return []


def as_record(workers: list[Worker], seconds: float, stuck: list[str]) -> dict[str, object]:
    sample = agent.latest()
    stats = torch.cuda.memory_stats()
    return {
        "seconds": round(seconds, 1),
        "stuck": stuck,
        "requests": sum(worker.requests for worker in workers),
        "least_of_a_thread": min(worker.requests for worker in workers),
        "ooms": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
        "stall_seconds": sample.health.stall_seconds if sample else None,
        "agent_errors": sample.health.errors if sample else None,
        "steps": sample.steps if sample else None,
        "recordings": sample.health.recordings if sample else None,
        "moments": [s.at for device in sample.devices for s in device.snapshots] if sample else None,
    }


if __name__ == "__main__":
    sys.exit(main())
