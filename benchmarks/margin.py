"""Is the smallest limit of a recorded step right? Five training loops under two settings, in processes of their own.

    PYTHONPATH=exporter python3 benchmarks/margin.py [--out margin.json]
    cd tests; PYTHONPATH=../exporter python3 -m fake_cuda run -- python3 ../benchmarks/margin.py    # without a GPU

Each loop runs without a limit, and the agent's source records its last step. The smallest limit of that step is
computed from the heap at its beginning, and for comparison from the same blocks packed without gaps. Then the loop
runs again in fresh processes. At the beginning of the same step, each releases its cached segments if they exceed the
limit, and sets the limit: the smallest one, with which the step should succeed, and 2 MiB less, with which it should
run out of memory. The same for a step before which the loop calls torch.cuda.empty_cache().
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import apart
from step_loops import LOOPS, Loop

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import Heap
from gpufrag.model.needs import step_run
from gpufrag.model.step import StepEvents
from gpufrag.model.trace.whatif import EMPTIED, OWN_HEAP, PACKED, smallest_limit

GRID = 2 << 20
STEPS = 12
CONFS = ("", "expandable_segments:True")
OUT_OF_MEMORY = 3
EMPTY = "BENCHMARK_EMPTY_CACHE"
"""Set: call empty_cache before the step in any case."""


def run_here(name: str, limit: int) -> dict[str, int | None] | None:
    """Run the loop; without a limit, return the figures of its last step."""
    import torch

    torch.zeros(1, device="cuda")
    loop = Loop(name)
    for _ in range(STEPS - 1):
        loop.step()
    if not limit:
        return recorded(loop.step)
    if EMPTY in os.environ or torch.cuda.memory_reserved() > limit:
        torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((limit + 0.5) / torch.cuda.get_device_properties(0).total_memory)
    try:
        loop.step()
    except torch.cuda.OutOfMemoryError:
        os._exit(OUT_OF_MEMORY)  # an ordinary exit can crash: autograd's threads still hold the error
    return None


def last_step(step: Callable[[], None]) -> tuple[Heap, StepEvents]:
    """Run a step; return the heap after it, and its events as the agent's source records them."""
    import torch

    from gpufrag.agent.torch.source import TorchSource
    from gpufrag.wire.error_counter import ErrorCounter

    source = TorchSource(torch, ErrorCounter())
    source.read()
    if (refusal := source.start_recording(100_000)) is not None:
        raise RuntimeError(f"torch does not record: {refusal}")
    step()
    capture = source.finish_recording(read=True)
    assert capture is not None
    assert capture.events is not None
    return capture.heap().on_device(0), capture.events()[0]


def recorded(step: Callable[[], None]) -> dict[str, int | None]:
    import torch

    heap, events = last_step(step)
    run = step_run(heap, events, Driver(None, torch.cuda.get_device_properties(0).total_memory, None))
    starts = {"smallest_limit": OWN_HEAP, "packed": PACKED, "after_empty_cache": EMPTIED}
    limits = {name: smallest_limit(run, heap.settings, start=start) for name, start in starts.items()}
    return {
        "events": len(events.actions),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        **limits,
    }


def run_apart(name: str, conf: str, limit: int = 0, **environment: str) -> Any:
    """The figures of a run without a limit; whether a run with one succeeds."""
    done = apart.start(name, limit, conf, CUBLAS_WORKSPACE_CONFIG=":4096:8", **environment)
    if done.returncode not in (0, OUT_OF_MEMORY):
        raise RuntimeError(done.stderr[-500:])
    return done.returncode == 0 if limit else json.loads(done.stdout.splitlines()[-1])


def verify(name: str, conf: str) -> dict[str, Any]:
    row = {"loop": name, "conf": conf, **run_apart(name, conf)}
    row["succeeds"] = run_apart(name, conf, row["smallest_limit"])
    row["fails_2_mib_below"] = not run_apart(name, conf, row["smallest_limit"] - GRID)
    emptied = row["after_empty_cache"]
    row["emptied_succeeds"] = run_apart(name, conf, emptied, **{EMPTY: "1"})
    row["emptied_fails_2_mib_below"] = not run_apart(name, conf, emptied - GRID, **{EMPTY: "1"})
    return row


def main() -> None:
    rows = apart.main(__doc__, LOOPS, [(conf,) for conf in CONFS], run_here, verify)
    for key in ("succeeds", "fails_2_mib_below", "emptied_succeeds", "emptied_fails_2_mib_below"):
        print(f"{key}: {sum(row[key] for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
