"""NVIDIA's compute-sanitizer over a training loop with an agent: no invalid memory access.

    PYTHONPATH=exporter python3 benchmarks/memcheck.py [--steps 60] [--out memcheck.json]

The loop trains a small decoder; the agent records steps every 50 ms and explains one out-of-memory error that the loop
survives. Exits with compute-sanitizer's exit code.

Failing calls are not reported, because one is meant to fail. Host stacks are not looked up: a Python stack needs the
interpreter's lock inside the allocator's, and every thread that reads torch's statistics takes them in the opposite
order. A loop that makes no progress for a minute prints the stacks of its threads and is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

SANITIZER = "compute-sanitizer"
ELSEWHERE = "/usr/local/cuda/bin/compute-sanitizer"
FOUND_ERRORS = 99
QUIET = ["--report-api-errors", "no", "--show-backtrace", "device"]
STUCK = 60.0
"""Seconds that a step may take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return train(options.steps) if options.inside else sanitize(options.steps, options.out)


def sanitize(steps: int, out: Path | None) -> int:
    sanitizer = shutil.which(SANITIZER) or ELSEWHERE
    tool = [sanitizer, "--tool", "memcheck", *QUIET, "--error-exitcode", str(FOUND_ERRORS)]
    watched = [sys.executable, "-m", "gpufrag", "run", "--interval", "0.05", "--budget", "0.5", "--"]
    loop = [sys.executable, __file__, "--inside", "--steps", str(steps)]
    with subprocess.Popen([*tool, *watched, *loop], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        lines = [shown(line) for line in run.stdout or ()]
    text = "".join(lines)
    summary = re.search(r"ERROR SUMMARY: (\d+) error", text)
    inside = re.search(r"^inside: (.*)$", text, re.MULTILINE)
    report = {"exit": run.returncode, "errors": summary and int(summary[1]), "agent": inside and json.loads(inside[1])}
    print(json.dumps(report))
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")
    return run.returncode


def shown(line: str) -> str:
    """At once: who waits sees the steps."""
    print(line, end="", flush=True)
    return line


def train(steps: int) -> int:
    import torch
    from workloads import Decoder

    from gpufrag import agent

    model = Decoder(width=192, layers=2, vocabulary=2000).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    moments: set[str] = set()
    began = time.monotonic()
    for step in range(steps):
        faulthandler.dump_traceback_later(STUCK, exit=True)
        model.loss(torch.randint(0, 2000, (4 + step % 5, 64), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step + 1} of {steps} after {time.monotonic() - began:.0f} s", flush=True)
        if step == steps // 2:
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        if sample := agent.latest():
            moments |= {snapshot.at for device in sample.devices for snapshot in device.snapshots}
    faulthandler.cancel_dump_traceback_later()
    latest = agent.latest()
    inside = {"seconds": round(time.monotonic() - began, 1), "moments": sorted(moments)}
    if latest:
        health = latest.health
        inside |= {"steps": latest.steps, "agent_errors": health.errors, "recordings": health.recordings}
    print("inside:", json.dumps(inside), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
