"""One rank of the demo: `python -m gpufrag.demo.rank TRACE SECONDS`.

It replays a recorded trace on the simulated allocator within SECONDS, then keeps its memory until it is stopped. Its
agent is the real one.
"""

from __future__ import annotations

import sys
import threading
import time

from .. import agent
from ..agent import lifecycle
from ..errors import GpufragError, Unavailable
from ..model.simulator.allocator import Allocator
from ..model.trace.program import Replay
from .source import SimulatedSource
from .traces import load

STEPS = 200
"""Optimizer steps that the trace is divided into; the trace has none."""
TRIES = 10


def main(name: str, seconds: float) -> None:
    trace = load(name)
    allocator = Allocator(trace.settings, trace.driver)
    lock = threading.Lock()
    source = SimulatedSource(allocator, lock, f"GPU-demo-{name}", trace.alloc_conf)
    agent.start(source=source, interval=1.0)
    replay = Replay(trace.program, allocator)
    for step in range(1, STEPS + 1):
        with lock:
            replay.run(until=len(trace.program.operations) * step // STEPS)
        source.step()
        time.sleep(seconds / STEPS)
    ended = time.time()
    sample_the_end()
    print(ended, flush=True)  # the demo waits for a snapshot that is not older
    threading.Event().wait()  # keep the heap until a signal ends the process


def sample_the_end() -> None:
    """Take a snapshot of the end of the trace, which the demo is about. Raises Unavailable."""
    for left in reversed(range(TRIES)):
        try:
            lifecycle.sample_now()
            return
        except Unavailable:  # the machine is busy; the heap no longer changes, so a later snapshot is the same
            if not left:
                raise


if __name__ == "__main__":
    try:
        main(sys.argv[1], float(sys.argv[2]))
    except GpufragError as error:
        raise SystemExit(f"gpufrag demo: {error}") from None
    except KeyboardInterrupt:
        pass
