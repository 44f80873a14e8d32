"""What the agent costs a training loop that launches small kernels, so that the host decides how long a step takes.

    PYTHONPATH=exporter python3 benchmarks/host_overhead.py [--out host_overhead.json] [--pairs 40] [--seconds 30]

On a shared host, such a loop's speed changes by several percent within seconds, so long stretches cannot show a small
difference. This script measures the two parts of the cost on neighbouring steps:

    between recordings  pairs of one-second stretches with an agent and without, in alternating order; medians of the
                        step times, geometric mean of their ratios
    a recording         the time that the recorded step and those up to 0.3 s after it take more than the 20 steps
                        before and after them; the same sum half an interval later is the control

Printed are both with their 95 % confidence intervals, and their sum for one recording per ten seconds, the default.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from step_recording import HostBound, interval

from gpufrag import agent
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import Capture
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter

INTERVAL = 1.0
"""Seconds between two recordings here."""
DEFAULT_INTERVAL = AgentSettings().interval
AFTER, NEIGHBOURS = 0.3, 20
STRETCH, SETTLE = 20, 3
"""Steps."""


class Timed(TorchSource):
    """The agent's own source; it notes when each recording began and ended."""

    def __init__(self) -> None:
        super().__init__(torch, ErrorCounter())
        self.spans: list[tuple[float, float]] = []
        self._began = 0.0

    def start_recording(self, max_events: int) -> str | None:
        self._began = time.perf_counter()
        return super().start_recording(max_events)

    def finish_recording(self, read: bool) -> Capture | None:
        found = super().finish_recording(read)
        self.spans.append((self._began, time.perf_counter()))
        return found


class Loop(HostBound):
    def ends(self, steps: int = 0, seconds: float = 0.0) -> list[float]:
        """Run equal steps; return when each ended, and before them when the first began."""
        found = [time.perf_counter()]
        while len(found) <= steps or found[-1] < found[0] + seconds:
            self.model.loss(torch.full((3, 40), 7, device="cuda")).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            found.append(time.perf_counter())
        torch.cuda.synchronize()
        return found


def between_recordings(loop: Loop, pairs: int) -> list[float]:
    """Return the ratios of median step times, with an agent over without, as logarithms."""
    logs = []
    for number in range(pairs):
        medians = {}
        for with_agent in (number % 2 == 0, number % 2 == 1):
            agent.start() if with_agent else agent.stop()
            loop.ends(SETTLE)
            ends = loop.ends(STRETCH)
            medians[with_agent] = statistics.median(b - a for a, b in pairwise(ends))
            agent.stop()
        logs.append(math.log(medians[True] / medians[False]))
    return logs


def recordings(loop: Loop, seconds: float) -> tuple[list[float], list[float]]:
    """Return the extra seconds of each recording, and of the moments half an interval later."""
    source = Timed()
    with tempfile.TemporaryDirectory() as folder:
        running = Agent(source, AgentSettings(interval=INTERVAL, budget=1.0, folder=Path(folder)))
        running.start()
        ends = loop.ends(seconds=seconds)
        running.stop()
    moved = [(begin + INTERVAL / 2, end + INTERVAL / 2) for begin, end in source.spans]
    extra, control = (
        [value for span in spans if (value := extra_of(ends, *span)) is not None] for spans in (source.spans, moved)
    )
    return extra, control


def extra_of(ends: list[float], began: float, ended: float) -> float | None:
    touched = [k for k in range(1, len(ends)) if ends[k] > began and ends[k - 1] < ended + AFTER]
    if not touched or touched[0] <= NEIGHBOURS or touched[-1] + NEIGHBOURS >= len(ends):
        return None
    around = [*range(touched[0] - NEIGHBOURS, touched[0]), *range(touched[-1] + 1, touched[-1] + 1 + NEIGHBOURS)]
    usual = statistics.median(ends[k] - ends[k - 1] for k in around)
    return sum(ends[k] - ends[k - 1] - usual for k in touched)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    loop = Loop()
    loop.ends(4 * STRETCH)
    found: dict[str, Any] = {"torch": torch.__version__, "logs": between_recordings(loop, options.pairs)}
    found["extra"], found["control"] = recordings(loop, options.seconds)
    found["step_seconds"] = statistics.median(b - a for a, b in pairwise(loop.ends(STRETCH)))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    low, middle, high = (math.exp(value) for value in interval(found["logs"]))
    print(f"between recordings: {middle:.4f} times the step time, 95 % between {low:.4f} and {high:.4f}")
    for name in ("extra", "control"):
        each = [value * 1e3 for value in interval(found[name])]
        print(f"{name}: {each[1]:.2f} ms, 95 % between {each[0]:.2f} and {each[2]:.2f} ({len(found[name])} moments)")
    total = [1 + value / DEFAULT_INTERVAL for value in interval(found["extra"])]
    print(f"recordings alone, one per {DEFAULT_INTERVAL:g} s: {total[1]:.5f}, {total[0]:.5f} to {total[2]:.5f}")


if __name__ == "__main__":
    main()
