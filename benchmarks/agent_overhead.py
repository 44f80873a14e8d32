"""What the agent costs a training job: paired runs of train_loop.py with and without it, under `gpufrag run`.

    PYTHONPATH=exporter python3 benchmarks/agent_overhead.py [--pairs 8] [--out agent_overhead.json]

Each pair is two processes one after the other, in alternating order, that do the same work. Printed is the geometric
mean of the ratios of step times (with the agent over without) and its 95 % confidence interval by Student's t.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

T_95 = {7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 15: 2.131, 19: 2.093}
"""Student's t for 95 %, both sides, by degrees of freedom."""


def run(steps: int, folder: str | None) -> dict[str, Any]:
    """One run; with the agent where it has a folder to publish in."""
    loop = [sys.executable, str(Path(__file__).with_name("train_loop.py")), "--steps", str(steps)]
    environment = dict(os.environ)
    if folder is not None:
        loop = [sys.executable, "-m", "gpufrag", "run", "--", *loop]
        environment["GPUFRAG_DIR"] = folder
    done = subprocess.run(loop, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def sampled(folder: str) -> dict[str, Any]:
    """What the last agent in the folder said of itself: proof that it was there, and its own account of its cost."""
    newest = max(Path(folder).glob("*.json"), key=lambda path: path.stat().st_mtime)
    sample = json.loads(newest.read_bytes())
    snapshots = [snapshot for device in sample["devices"] for snapshot in device["snapshots"]]
    return {
        "steps": sample["steps"],
        "stall_seconds": sample["health"]["stall_seconds"],
        "errors": sample["health"]["errors"],
        "snapshot_seconds": {snapshot["at"]: snapshot["duration"] for snapshot in snapshots},
    }


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """(low, geometric mean, high)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = T_95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean), math.exp(mean + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, choices=sorted(degrees + 1 for degrees in T_95))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory(prefix="gpufrag-bench-") as folder:
        for number in range(options.pairs):
            order = (None, folder) if number % 2 == 0 else (folder, None)
            results = {where is not None: run(options.steps, where)["seconds_per_step"] for where in order}
            pair = {"with": results[True], "without": results[False], "ratio": results[True] / results[False]}
            print(pair, file=sys.stderr, flush=True)
            pairs.append(pair)
        agent = sampled(folder)
    low, mean, high = interval([pair["ratio"] for pair in pairs])
    report = {"pairs": pairs, "ratio": mean, "low": low, "high": high, "agent": agent}
    print(f"step time with the agent over without: {mean:.5f}, 95 % between {low:.5f} and {high:.5f}")
    print(f"the last agent's own account: {agent}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
