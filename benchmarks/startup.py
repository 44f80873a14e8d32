"""What injection adds to the start of a Python process, and what the agent's modules add at the first use of a GPU.

    PYTHONPATH=exporter python3 benchmarks/startup.py [--runs 60] [--python PATH ...] [--out startup.json]

Needs neither torch nor a GPU. `start` is an interpreter that does nothing: with the shim alone on PYTHONPATH, over the
same without; `disabled` the same with GPUFRAG_DISABLE=1; `agent` the import of all that runs once a GPU is in use. All
starts take turns, so that a machine that slows down slows down all of them. Milliseconds of processor time, which other
work on the machine disturbs little: median, and the difference of medians with a 95 % interval by resampling; `modules`
are those that the shim brings into sys.modules.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpufrag.commands.run import PACKAGE, SHIM

MODULES = "import sys; print(' '.join(sys.modules))"
LIBRARY = str(PACKAGE.parent)
AGENT = f"import sys; sys.path.append({LIBRARY!r}); import gpufrag.agent.lifecycle, gpufrag.agent.torch.source"
STARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "bare": ("pass", {}),
    "start": ("pass", {"PYTHONPATH": str(SHIM)}),
    "disabled": ("pass", {"PYTHONPATH": str(SHIM), "GPUFRAG_DISABLE": "1"}),
    "agent": (AGENT, {}),
}
"""By name: the program, and what its environment has; each is compared with the first."""


def start(python: str, program: str, environment: Mapping[str, str]) -> str:
    """What it prints. Nothing else of this process's environment but PATH reaches it."""
    surroundings = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([python, "-c", program], env=surroundings, check=True, capture_output=True, text=True).stdout


def measure(python: str, runs: int) -> dict[str, list[float]]:
    """Seconds of processor time of every start; a first round, which fills the caches, is not counted."""
    found: dict[str, list[float]] = {name: [] for name in STARTS}
    for turn in range(runs + 1):
        for name, (program, environment) in STARTS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start(python, program, environment)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if turn:
                found[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return found


def interval(ours: Sequence[float], bare: Sequence[float], times: int = 2000) -> tuple[float, float]:
    """Of the difference of medians: 95 % of what it is when starts are drawn again from those that were measured."""
    draw = random.Random(1)

    def again(starts: Sequence[float]) -> float:
        return statistics.median(draw.choices(starts, k=len(starts)))

    differences = sorted(again(ours) - again(bare) for _ in range(times))
    return differences[times // 40], differences[-times // 40]


def added(found: Mapping[str, Sequence[float]]) -> dict[str, dict[str, object]]:
    bare = found["bare"]
    return {
        name: {
            "median_ms": statistics.median(starts) * 1e3,
            "added_ms": (statistics.median(starts) - statistics.median(bare)) * 1e3,
            "interval_ms": [bound * 1e3 for bound in interval(starts, bare)],
        }
        for name, starts in found.items()
    }


def modules(python: str) -> list[str]:
    bare, ours = (set(start(python, MODULES, STARTS[name][1]).split()) for name in ("bare", "start"))
    return sorted(ours - bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to start")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {}
    for python in options.python:
        results[python] = {"runs": options.runs, **added(measure(python, options.runs)), "modules": modules(python)}
        for name in list(STARTS)[1:]:
            row = results[python][name]
            low, high = row["interval_ms"]
            print(f"{python}: {name} adds {row['added_ms']:.2f} ms ({low:.2f} to {high:.2f})")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
