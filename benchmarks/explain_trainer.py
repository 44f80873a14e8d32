"""What `gpufrag explain` says of transformers' Trainer with GPT-2 and sequences of varying length.

    PYTHONPATH=exporter python3 benchmarks/explain_trainer.py [--steps 24] [--out explain_trainer.json]

The job runs under torch's default settings with its memory history on. Printed are the first lines of `gpufrag
explain`, and for the setting that saves most the predicted peak of reserved memory and that of a run under it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FIRST_LINES = 6


def child(steps: int, path: str) -> None:
    """Print the peaks of reserved and active memory; with a path, dump a snapshot with history there."""
    import torch
    from step_recording import trainer

    if path:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=2_000_000)
    torch.manual_seed(0)
    trainer("gpt2", math.inf, varying=True, steps=steps)
    if path:
        torch.cuda.memory._dump_snapshot(path)
    stats = torch.cuda.memory_stats()
    print(json.dumps({key: stats[f"{key}_bytes.all.peak"] for key in ("reserved", "active")}))


def run(steps: int, path: str = "", conf: str = "") -> dict[str, int]:
    command = [sys.executable, __file__, "--child", path, "--steps", str(steps)]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def explain(path: str, *flags: str) -> str:
    command = [sys.executable, "-m", "gpufrag", "explain", path, *flags]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.steps, options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/trainer.pickle"
        found: dict[str, Any] = {"peaks": run(options.steps, path), "file_bytes": Path(path).stat().st_size}
        began = time.perf_counter()
        found["lines"] = explain(path).splitlines()[:FIRST_LINES]
        found["explain_seconds"] = round(time.perf_counter() - began, 1)
        device = json.loads(explain(path, "--json"))["devices"][0]
    print(*found["lines"], f"explain took {found['explain_seconds']} s, peaks {found['peaks']}", sep="\n", flush=True)
    best = max((each for each in device["settings"] if not each["anchor"]), key=lambda setting: setting["saves"])
    best["predicted"] = found["peaks"]["reserved"] - best["saves"]
    best["real"] = run(options.steps, conf=best["conf"])["reserved"]
    print(f"{best['conf']}: predicted {best['predicted']:,}, is {best['real']:,} bytes")
    found["best"] = best
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
