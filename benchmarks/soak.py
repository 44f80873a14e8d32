"""A million samples of one agent: its process must not grow in memory, threads or descriptors.

    PYTHONPATH=exporter python benchmarks/soak.py [--samples 1000000] [--out soak.json]

The complete agent copies and measures the heap of a simulated allocator, publishes its file each time, listens on its
socket and answers a request for a sample now and then. Exits with 1 if resident memory grew by more than 1 MiB after
the first tenth of the samples, or the number of threads or descriptors changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import DeviceReading
from gpufrag.demo.source import SimulatedSource
from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
PARTS = 100
"""After each of them the process is looked at; the first tenth only warms up: rings and caches fill."""
LARGEST_GROWTH = MIB
SPACING = 0.004
"""Seconds between snapshots: one to some ten samples, as by default."""


@dataclass(frozen=True)
class State:
    """Of this process, after so many samples. `resident` in bytes."""

    samples: int
    resident: int
    threads: int
    descriptors: int


class CountingSource(SimulatedSource):
    """Each reading is one sample; between two the program has made a step and some requests."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__(allocator, threading.Lock(), "GPU-0", "")
        self.samples = 0
        self._live: list[Block] = []
        self._program = allocator

    def read(self) -> list[DeviceReading]:
        self._work()
        self.step()
        self.samples += 1
        return list(super().read())

    def _work(self) -> None:
        """Keeps 200 blocks alive, of sizes that come again."""
        size = (self.samples * 7919 % 40 + 1) * 256 * KIB
        if block := self._program.malloc(size):
            self._live.append(block)
        if len(self._live) > 200:
            self._program.free(self._live.pop(self.samples * 31 % 200))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufrag-soak-") as folder:
        states = list(soak(Path(folder), options.samples))
    first, last = states[PARTS // 10], states[-1]
    growth = max(state.resident for state in states[PARTS // 10 :]) - first.resident
    print(f"{last.samples:,} samples: at most {growth / KIB:+,.0f} KiB resident after the first tenth;")
    print(f"{last.threads} threads, {last.descriptors} files")
    if options.out:
        options.out.write_text(json.dumps([asdict(state) for state in states], indent=1) + "\n")
    steady = (first.threads, first.descriptors) == (last.threads, last.descriptors)
    return int(growth > LARGEST_GROWTH or not steady)


def soak(folder: Path, samples: int) -> Iterator[State]:
    source = CountingSource(Allocator(Settings(), Driver(8 * GIB, 8 * GIB), AddressSpace()))
    agent = Agent(source, AgentSettings(folder=folder, publish_every=0.0, interval=SPACING, budget=1.0))
    agent.start()
    part = samples // PARTS
    for number in range(PARTS + 1):
        while source.samples < number * part:
            time.sleep(0.01)
        agent.sample_now()
        yield _state(source.samples)
        if number % 10 == 0:
            print(f"{number} %", file=sys.stderr, flush=True)
    agent.stop()


def _state(samples: int) -> State:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    resident = int(status["VmRSS"].split()[0]) * KIB
    return State(samples, resident, threading.active_count(), len(os.listdir("/proc/self/fd")))


if __name__ == "__main__":
    sys.exit(main())
