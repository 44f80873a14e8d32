"""Training loops in processes of their own: a benchmark starts its own script again with `--run LOOP LIMIT`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def start(loop: str, limit: int, conf: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the loop under this PYTORCH_CUDA_ALLOC_CONF; the last line of its output is its result."""
    command = [sys.executable, sys.argv[0], "--run", loop, str(limit)]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)


def main(
    text: str | None,
    loops: Sequence[str],
    variants: Iterable[Sequence[Any]],
    run_here: Callable[[str, int], Any],
    row_of: Callable[..., dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return, print and save row_of(loop, *variant) of each loop and variant; --run prints run_here(loop, limit)."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--at-once", type=int, default=2, help="loops that run at the same time")
    parser.add_argument("--loops", nargs="*", choices=loops, default=loops)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        loop, limit = options.run
        print(json.dumps(run_here(loop, int(limit))))
        sys.exit()
    rows = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for row in pool.map(lambda run: row_of(*run), [(loop, *each) for loop in options.loops for each in variants]):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return rows
