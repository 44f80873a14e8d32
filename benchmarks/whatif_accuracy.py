"""Predicted against real: peak reserved memory of six workloads under five settings.

    PYTHONPATH=exporter python3 benchmarks/whatif_accuracy.py [--out whatif_accuracy.json] [--cases DIR]

Each workload runs once under the default setting with its trace recorded from the first allocation. From that trace
alone the peak under every setting is predicted; then each setting is run for real, in a process of its own, under
the same limit (1.5 times the recorded peak, so that garbage collection has something to act on).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpufrag.model.settings import parse_conf
from gpufrag.model.whatif import play, read_run
from gpufrag.snapshot_file import read_recording

MIB = 1 << 20
CONFS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "maxsplit": "max_split_size_mb:64",
    "roundup": "roundup_power2_divisions:4",
    "gc": "garbage_collection_threshold:0.6",
}
NAMES = ("train-varying", "kv-growth", "streams", "churn", "vision", "accumulate")
AT_ONCE = 4


@dataclass(frozen=True)
class Row:
    workload: str
    setting: str
    predicted: int
    real: int

    @property
    def error(self) -> float:
        return self.predicted / self.real - 1


def run_here(name: str, limit: int, case: str | None) -> dict[str, Any]:
    """Run a workload in this process; returns torch's statistics. With `case`, saves its trace there."""
    import torch
    from workloads import WORKLOADS

    torch.cuda.init()
    total = torch.cuda.get_device_properties(0).total_memory
    before = torch.cuda.mem_get_info()[0]
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / total)
    if case:
        torch.cuda.memory._record_memory_history(context=None)
    WORKLOADS[name]("cuda")
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    if case:
        save_case(Path(case), name, torch.cuda.memory._snapshot(), stats, before, total)
    return {key: value for key, value in stats.items() if ".all." in key or key.startswith("num_")}


def save_case(path: Path, name: str, raw: dict[str, Any], stats: dict[str, int], before: int, total: int) -> None:
    """In the form of tests/golden."""
    for segment in raw["segments"]:
        for record in (segment, *segment["blocks"]):
            record.pop("frames", None)
    columns = ["action", "addr", "size", "stream"]
    events = [
        [e["action"], e.get("addr"), e["size"], e["stream"]]
        for e in raw["device_traces"][0]
        if e["action"] not in ("snapshot", "annotate")
    ]
    case = {
        "workload": name,
        "seed": 0,
        "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "settings": raw["allocator_settings"],
        "cap_bytes": 0,
        "driver_free_before": before,
        "driver_total": total,
        "events_columns": columns,
        "events": events,
        "segments": raw["segments"],
        "stats": stats,
    }
    path.write_bytes(gzip.compress(json.dumps(case).encode(), mtime=0))


def run_apart(name: str, conf: str, limit: int, case: Path | None = None) -> dict[str, int]:
    command = [sys.executable, __file__, "--run", name, "--limit", str(limit), *(["--case", str(case)] if case else [])]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, folder: Path) -> list[Row]:
    case = folder / f"{name}.json.gz"
    peak = run_apart(name, "", 0, case)["reserved_bytes.all.peak"]
    limit = peak * 3 // 2 // MIB * MIB
    recording = read_recording(case)
    run = read_run(recording.events, recording.end, recording.before)
    rows = []
    for setting, conf in CONFS.items():
        real = run_apart(name, conf, limit)["reserved_bytes.all.peak"]
        rows.append(Row(name, setting, play(run, parse_conf(conf), limit).peak_reserved, real))
    return rows


def report(rows: list[Row]) -> None:
    print(f"{'workload':<15}{'setting':<12}{'predicted MiB':>15}{'real MiB':>12}{'error':>9}")
    for row in rows:
        print(
            f"{row.workload:<15}{row.setting:<12}{row.predicted / MIB:>15,.0f}{row.real / MIB:>12,.0f}{row.error:>9.2%}"
        )
    print(f"within 1 %: {sum(abs(row.error) <= 0.01 for row in rows)} of {len(rows)}")
    for name in dict.fromkeys(row.workload for row in rows):
        some = [row for row in rows if row.workload == name]
        advised = min(some, key=lambda row: row.predicted)
        best = min(row.real for row in some)
        print(f"{name}: advised {advised.setting}, {advised.real / best - 1:.2%} above the best real peak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", type=Path, default=Path("whatif_cases"))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run_here(options.run, options.limit, options.case)))
        return
    options.cases.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = [row for rows in pool.map(lambda name: compare(name, options.cases), NAMES) for row in rows]
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    report(rows)


if __name__ == "__main__":
    main()
