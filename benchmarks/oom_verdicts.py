"""Compare the agent's verdicts with the known causes of twelve out-of-memory errors, and measure the cost of a report.

    PYTHONPATH=exporter python3 benchmarks/oom_verdicts.py [--out oom_verdicts.json]

Each error happens in its own process under `gpufrag run` (benchmarks/oom_stages.py). The script reads reports as
`gpufrag oom list` does. `snapshot` is the time torch needs to copy the heap, `explain` the rest of the agent's work
before torch raises the error. The script also times the failing request of a process with 10,000 blocks, with and
without an agent. Times are in milliseconds. Exits with 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oom_stages import MANY_BLOCKS, PAUSE, STAGES, Stage

from gpufrag.sidecar.oom_files import read_all
from gpufrag.wire.oom_report import OomReport

HERE = Path(__file__).parent
PATIENCE = 60


class Child:
    """A process that has loaded torch and waits: the import takes longest, so all processes start first."""

    def __init__(self, name: str, stage: Stage, folder: Path, agent: bool = True) -> None:
        self.folder = folder / f"{name}-{agent}"
        run = [sys.executable, "-m", "gpufrag", "run", "--"] if agent else []
        settings = {"PYTORCH_CUDA_ALLOC_CONF": stage.conf, "GPUFRAG_DIR": str(self.folder)}
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", **settings}
        if not stage.conf:
            del environment["PYTORCH_CUDA_ALLOC_CONF"]
        command = [*run, sys.executable, str(HERE / "oom_stages.py"), name]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def go(self) -> dict[str, Any]:
        """Let it fail; what it printed."""
        out, err = self._process.communicate("go\n", timeout=PATIENCE)
        lines = out.splitlines()
        if self._process.returncode or len(lines) != 2:
            raise SystemExit(f"{self.folder.name}: {err.strip()[-2000:]}")
        result: dict[str, Any] = json.loads(lines[1])
        return result | {"log": err.strip()}

    def reports(self) -> tuple[OomReport, ...]:
        return read_all(self.folder, 100) if self.folder.exists() else ()


def verdict(name: str, stage: Stage, child: Child) -> dict[str, Any]:
    result = child.go()
    reports = child.reports()
    report = reports[0] if reports else None
    return {
        "stage": name,
        "truth": stage.cause,
        "verdict": report.cause if report else None,
        "right": report is not None and report.cause == stage.cause,
        "errors": len(reports),
        "requested": report.requested if report else None,
        "free_total": report.measured.free_total if report and report.measured else None,
        "largest_allocatable": report.measured.largest_allocatable if report and report.measured else None,
        "evidence": list(report.evidence) if report else [],
        "snapshot_ms": report.snapshot_seconds * 1e3 if report else None,
        "explain_ms": report.explain_seconds * 1e3 if report else None,
        "device": result["device"],
        "log": result["log"],
    }


def pause(with_agent: Child, without: Child) -> dict[str, Any]:
    watched, bare = with_agent.go()["seconds"], without.go()["seconds"]
    reports = with_agent.reports()
    assert len(reports) == len(watched), f"{len(reports)} reports of {len(watched)} errors"
    heap = reports[0].measured
    assert heap is not None
    snapshot = statistics.median(report.snapshot_seconds for report in reports)
    above = statistics.median(watched) - statistics.median(bare)
    pools = (heap.large, heap.small)
    return {
        "blocks": sum(pool.active_blocks + pool.awaiting_blocks + pool.inactive_blocks for pool in pools),
        "tensors_made": MANY_BLOCKS,
        "errors": len(reports),
        "failing_request_with_agent_ms": statistics.median(watched) * 1e3,
        "failing_request_without_ms": statistics.median(bare) * 1e3,
        "snapshot_ms": snapshot * 1e3,
        "explain_ms": statistics.median(report.explain_seconds for report in reports) * 1e3,
        "on_top_of_the_snapshot_ms": (above - snapshot) * 1e3,
        "on_top_of_the_snapshot_slowest_ms": (max(watched) - statistics.median(bare) - snapshot) * 1e3,
    }


def show(rows: list[dict[str, Any]], cost: dict[str, Any]) -> None:
    print(f"{'stage':<40}{'truth':<15}{'verdict':<15}{'snapshot ms':>12}{'explain ms':>12}")
    for row in rows:
        figures = [f"{row[name]:>12.2f}" if row[name] is not None else f"{'-':>12}" for name in _COSTS]
        print(f"{row['stage']:<40}{row['truth']:<15}{row['verdict'] or 'none':<15}{''.join(figures)}")
    print(f"right: {sum(row['right'] for row in rows)} of {len(rows)}")
    print("pause: " + ", ".join(f"{name} {value:.2f}" for name, value in cost.items()))


_COSTS = ("snapshot_ms", "explain_ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        children = {name: Child(name, stage, folder) for name, stage in STAGES.items()}
        measured = Child("pause", PAUSE, folder), Child("pause", PAUSE, folder, agent=False)
        rows = [verdict(name, stage, children[name]) for name, stage in STAGES.items()]
        cost = pause(*measured)
    show(rows, cost)
    if options.out:
        options.out.write_text(json.dumps({"verdicts": rows, "pause": cost}, indent=2) + "\n")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
