"""Whether the agent finds a leak of 2 MB a step within 60 steps, and reports none in six healthy trainings.

    PYTHONPATH=exporter python3 benchmarks/leak_detection.py [--out leak_detection.json] [--steps 600]

Each loop (benchmarks/leak_loops.py) is a process under `gpufrag run`, all on one device at once; a step takes about
60 ms. `logged` is the step at which the agent logged the leak, `published` the step at which its sample contained it,
`stall` the agent's share of wall time. A leak that begins late and one with the allocator's history on (which names
the line) run too, without the limit of 60 steps. Exits with 1 if a leak is missed or a healthy loop is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from leak_loops import LEAKING, LOOPS

HERE = Path(__file__).parent
WITHIN = 60
PATIENCE = 140
"""Seconds for all of them together."""
STEPS = {"leak": 100, "leak from step 200": 1200}
"""Of loops that need fewer, or more: what leaks from the beginning only goes on; readings come rarer later."""
OFTEN = {"GPUFRAG_INTERVAL": "0.3", "GPUFRAG_BUDGET": "0.01"}
"""For the loop with history, whose snapshots come ten times rarer: two of them are needed."""


def start(name: str, steps: int, folder: Path) -> subprocess.Popen[str]:
    often = OFTEN if name == "leak with history" else {}
    own = folder / name.replace(" ", "-")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "GPUFRAG_DIR": str(own), **often}
    command = [sys.executable, "-m", "gpufrag", "run", "--", sys.executable, str(HERE / "leak_loops.py"), name]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, str(STEPS.get(name, steps))], env=environment, stdout=pipe, stderr=pipe, text=True
    )


def finish(name: str, process: subprocess.Popen[str], until: float) -> dict[str, Any]:
    out, err = process.communicate(timeout=max(1.0, until - time.monotonic()))
    if process.returncode:  # the others still have results
        return {"loop": name, "error": err.strip()[-2000:], "right": False}
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {"loop": name, "leaks": name in LEAKING, **result, "right": right(name, result)}


def right(name: str, result: dict[str, Any]) -> bool:
    if name == "leak":
        return result["logged_at"] is not None and result["logged_at"] <= WITHIN
    if name == "leak with history":
        return any("leak_loops.py" in line for line in result["lines"])
    if name in LEAKING:
        return result["logged_at"] is not None
    return result["logged_at"] is None and result["published_at"] is None and (result["last"] or {}).get("rate") == 0


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'loop':<34}{'logged':>8}{'published':>11}{'step ms':>9}{'stall':>9}  right")
    for row in rows:
        if "error" in row:
            print(f"{row['loop']:<34}failed: {row['error'].splitlines()[-1] if row['error'] else 'without a word'}")
            continue
        seconds = row["step_seconds"] * row["agent_steps"]
        stall = sum(row["stall_seconds"].values()) / seconds if seconds else 0.0
        logged, published = row["logged_at"] or "-", row["published_at"] or "-"
        print(
            f"{row['loop']:<34}{logged:>8}{published:>11}{row['step_seconds'] * 1e3:>9.1f}{stall:>9.4%}  {row['right']}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    until = time.monotonic() + PATIENCE
    with tempfile.TemporaryDirectory() as temporary:
        started = {name: start(name, options.steps, Path(temporary)) for name in LOOPS}
        try:
            rows = [finish(name, process, until) for name, process in started.items()]
        finally:
            for process in started.values():
                process.kill()
    show(rows)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
