"""The live what-if against real runs: how much memory does a step need under another setting?

    PYTHONPATH=exporter python3 benchmarks/live_whatif.py [--out live_whatif.json]
    cd tests; PYTHONPATH=../exporter python3 -m fake_cuda run -- python3 ../benchmarks/live_whatif.py    # no GPU

Each loop runs under torch's default settings. Its last step is recorded, and the smallest limits under other settings
are computed as the sidecar does (gpufrag_whatif_smallest_limit_bytes). Then the loop runs under each setting, in a
process of its own. There, the same step is repeated with an empty cache under ever smaller limits, and the smallest
limit at which it succeeds is compared with the computed one.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import apart
from margin import GRID, STEPS, last_step
from step_loops import LOOPS, Loop

from gpufrag.model.allocatable import Driver
from gpufrag.model.needs import step_needs

SETTINGS = {
    "default": "",
    "expandable_segments": "expandable_segments:True",
    "max_split_size_mb:128": "max_split_size_mb:128",
    "roundup_power2_divisions:4": "roundup_power2_divisions:4",
}
MOST_ERROR = 0.02


def run_here(name: str, search: int) -> dict[str, Any]:
    """Return the smallest limits computed from the last step; with `search`, the real one of this process."""
    import torch

    loop = Loop(name)
    for _ in range(STEPS - 1):
        loop.step()
    if search:
        return {"real": smallest(loop)}
    heap, events = last_step(loop.step)
    total = torch.cuda.get_device_properties(0).total_memory
    return dict(step_needs(0, heap, events, Driver(None, total, None)).smallest_limits)


def smallest(loop: Loop) -> int:
    """Return the smallest limit at which the next step succeeds, to 2 MiB, by bisection."""
    import torch

    state, total = loop.rng.getstate(), torch.cuda.get_device_properties(0).total_memory

    def succeeds(limit: int) -> bool:
        loop.rng.setstate(state)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if torch.cuda.memory_reserved() > limit:
            return False
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)
        try:
            loop.step()
        except torch.cuda.OutOfMemoryError:
            loop.forget()
            return False
        finally:
            gc.collect()
        return True

    low, high = 0, total // GRID
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if succeeds(middle * GRID) else (middle, high)
    return high * GRID


def run_apart(name: str, search: int, conf: str) -> dict[str, Any]:
    done = apart.start(name, search, conf)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"loop": name, "predicted": run_apart(name, 0, "")}
    row["real"] = {setting: run_apart(name, 1, conf)["real"] for setting, conf in SETTINGS.items()}
    row["error"] = {name: round(row["predicted"][name] / real - 1, 4) for name, real in row["real"].items()}
    return row


def main() -> None:
    rows = apart.main(__doc__, LOOPS, [()], run_here, compare)
    errors = [error for row in rows for error in row["error"].values()]
    print(f"within 2 %: {sum(abs(error) <= MOST_ERROR for error in errors)} of {len(errors)}")


if __name__ == "__main__":
    main()
