"""Is the smallest limit with an anchor right? Training loops, each in processes of its own.

    PYTHONPATH=exporter python3 benchmarks/anchor.py [--out anchor.json]
    cd tests; PYTHONPATH=../exporter python3 -m fake_cuda run -- python3 ../benchmarks/anchor.py    # without a GPU

Each loop of margin.py runs without a limit and without an anchor, and is recorded from its start. For each anchor that
a what-if tries, the smallest limit is computed. Then the loop runs again in fresh processes, with the agent's anchor,
under this limit, with which it should succeed, and under 2 MiB less, with which it should run out of memory.
"""

from __future__ import annotations

import json
import os
from typing import Any

import apart
from margin import GRID, OUT_OF_MEMORY
from step_loops import LOOPS, Loop

STEPS = 4
ANCHOR = "BENCHMARK_ANCHOR"


def run_here(name: str, limit: int) -> dict[str, Any] | None:
    """Run the loop; without a limit, return the smallest limit of each anchor."""
    import torch

    from gpufrag.agent.torch.anchor import Anchor
    from gpufrag.wire.error_counter import ErrorCounter

    torch.cuda.init()
    if not limit:
        torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
    else:
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / torch.cuda.get_device_properties(0).total_memory)
        errors = ErrorCounter()
        Anchor(torch, int(os.environ[ANCHOR]), errors).drop_when_chosen()
        if (int(os.environ[ANCHOR]) > limit) != bool(errors.counts):
            raise RuntimeError(f"the anchor of {os.environ[ANCHOR]} bytes: {errors.counts}")
    loop = Loop(name)
    try:
        for _ in range(STEPS):
            loop.step()
    except torch.cuda.OutOfMemoryError:
        os._exit(OUT_OF_MEMORY)  # see margin.py
    return None if limit else predicted(torch.cuda.memory._snapshot())


def predicted(snapshot: dict[str, Any]) -> dict[str, Any]:
    from gpufrag.model.allocatable import Driver
    from gpufrag.model.heap import parse
    from gpufrag.model.trace.events import parse_trace
    from gpufrag.model.trace.whatif import Start, possible_anchors, read_run, smallest_limit

    end = parse(snapshot)
    run = read_run(parse_trace(snapshot["device_traces"][0]), end, Driver())
    anchors = {
        size: smallest_limit(run, end.settings, start=Start(anchor=size))
        for size in possible_anchors(run, end.settings)
    }
    return {"operations": len(run.program.operations), "default": smallest_limit(run, end.settings), "anchors": anchors}


def run_apart(name: str, limit: int = 0, anchor: str = "0") -> Any:
    """The figures of a run without a limit; whether a run with one succeeds."""
    done = apart.start(name, limit, "", CUBLAS_WORKSPACE_CONFIG=":4096:8", **{ANCHOR: anchor})
    if done.returncode not in (0, OUT_OF_MEMORY):
        raise RuntimeError(done.stderr[-500:])
    return done.returncode == 0 if limit else json.loads(done.stdout.splitlines()[-1])


def verify(name: str) -> dict[str, Any]:
    found = run_apart(name)
    found["anchors"] = {
        size: {
            "smallest_limit": limit,
            "succeeds": run_apart(name, limit, size),
            "fails_2_mib_below": not run_apart(name, limit - GRID, size),
        }
        for size, limit in found["anchors"].items()
    }
    return {"loop": name, **found}


def main() -> None:
    rows = apart.main(__doc__, LOOPS, [()], run_here, verify)
    anchors = [anchor for row in rows for anchor in row["anchors"].values()]
    for key in ("succeeds", "fails_2_mib_below"):
        print(f"{key}: {sum(anchor[key] for anchor in anchors)} of {len(anchors)}")


if __name__ == "__main__":
    main()
