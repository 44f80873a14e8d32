"""How long `gpufrag attach` pauses a process.

    PYTHONPATH=exporter python3 benchmarks/attach_pause.py [--runs 10] [--python PATH] [--torch] [--out FILE]

Needs gdb and the right to trace. A process that only reads the clock measures the longest time between two
readings while gdb is attached, and as long without it; with --torch it has imported torch, whose libraries are
large. Milliseconds: median and worst.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

LOOK = """
import select, sys, time
{torch}
def longest():
    last, gap = time.perf_counter(), 0.0
    while not select.select([0], [], [], 0)[0]:
        now = time.perf_counter()
        last, gap = now, max(gap, now - last)
    sys.stdin.readline()
    return gap
while True:
    print("ready", flush=True)
    print(longest() * 1e3, flush=True)
"""


def gap(process: subprocess.Popen[str], attach: bool) -> float:
    """In milliseconds, for the time that a command of gpufrag takes: attach, or one that touches nothing."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    words = ["attach", str(process.pid), "--yes"] if attach else ["attach", "--help"]
    subprocess.run([sys.executable, "-m", "gpufrag", *words], check=True, capture_output=True)
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    program = LOOK.format(torch="import torch" if options.torch else "")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([options.python, "-c", program], text=True, **pipes) as process:  # type: ignore[call-overload]
        gaps = {kind: [gap(process, kind == "attached") for _ in range(options.runs)] for kind in ("alone", "attached")}
        process.kill()
    for kind, found in gaps.items():
        print(f"{kind}: median {statistics.median(found):.1f} ms, worst {max(found):.1f} ms")
    if options.out:
        options.out.write_text(json.dumps(gaps, indent=1) + "\n")


if __name__ == "__main__":
    main()
