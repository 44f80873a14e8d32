"""Predicted against real: peak reserved memory of six workloads under five settings.

    PYTHONPATH=exporter python3 benchmarks/whatif_accuracy.py [--cases DIR] [--seed N]
    PYTHONPATH=exporter python3 benchmarks/whatif_accuracy.py --again DIR

Each workload runs once under the default setting with its trace recorded from the first allocation. From that trace
alone the peak under every setting is predicted; then each setting is run for real, in a process of its own, under
the same limit (1.5 times the recorded peak, so that garbage collection has something to act on). The traces and
the real peaks (peaks.json) stay in DIR; --again predicts from there, without a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufrag.model.settings import parse_conf
from gpufrag.model.trace.whatif import play, read_run
from gpufrag.snapshot_file.recording import read_recording

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


def run_here(name: str, seed: int, limit: int, case: str | None) -> dict[str, Any]:
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
    WORKLOADS[name]("cuda", seed)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    if case:
        save_case(Path(case), name, torch.cuda.memory._snapshot(), stats, before, total)
    return {key: value for key, value in stats.items() if ".all." in key or key.startswith("num_")}


def save_case(path: Path, name: str, raw: dict[str, Any], stats: dict[str, int], before: int, total: int) -> None:
    """In the form of tests/golden."""
    import torch

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
        "torch": torch.__version__,
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


def run_apart(name: str, seed: int, conf: str, limit: int, case: Path | None = None) -> int:
    """The peak of reserved memory."""
    command = [sys.executable, __file__, "--run", name, "--seed", str(seed), "--limit", str(limit)]
    command += ["--case", str(case)] if case else []
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    peak: int = json.loads(done.stdout.splitlines()[-1])["reserved_bytes.all.peak"]
    return peak


def measure(name: str, seed: int, folder: Path) -> dict[str, int]:
    """The real peak under each setting; the trace of the default one is saved."""
    peak = run_apart(name, seed, "", 0, folder / f"{name}.json.gz")
    return {setting: run_apart(name, seed, conf, limit_for(peak)) for setting, conf in CONFS.items()}


def limit_for(peak: int) -> int:
    return peak * 3 // 2 // MIB * MIB


def predict(folder: Path) -> list[Row]:
    """From the traces and the real peaks in a folder."""
    real = {(row["workload"], row["setting"]): row["real"] for row in json.loads((folder / "peaks.json").read_text())}
    rows = []
    for name in NAMES:
        recording = read_recording(folder / f"{name}.json.gz", torch="2.11.0")
        run = read_run(recording.events, recording.end, recording.before)
        limit = limit_for(real[name, "default"])
        for setting, conf in CONFS.items():
            outcome = play(run, parse_conf(conf), limit)
            rows.append(Row(name, setting, outcome.peak_reserved, real[name, setting]))
    return rows


def report(rows: list[Row]) -> None:
    print(f"{'workload':<15}{'setting':<12}{'predicted MiB':>15}{'real MiB':>12}{'error':>9}")
    for row in rows:
        predicted, real = row.predicted / MIB, row.real / MIB
        print(f"{row.workload:<15}{row.setting:<12}{predicted:>15,.0f}{real:>12,.0f}{row.error:>9.2%}")
    print(f"within 1 %: {sum(abs(row.error) <= 0.01 for row in rows)} of {len(rows)}")
    for name in dict.fromkeys(row.workload for row in rows):
        some = [row for row in rows if row.workload == name]
        advised = min(some, key=lambda row: row.predicted)
        best = min(row.real for row in some)
        print(f"{name}: advised {advised.setting}, {advised.real / best - 1:.2%} above the best real peak")


def measure_all(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        measured = list(pool.map(lambda name: measure(name, seed, folder), NAMES))
    peaks = [
        {"workload": name, "setting": setting, "real": real}
        for name, found in zip(NAMES, measured)
        for setting, real in found.items()
    ]
    (folder / "peaks.json").write_text(json.dumps(peaks, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=Path("whatif_cases"), metavar="DIR")
    parser.add_argument("--again", type=Path, metavar="DIR", help="predict from what an earlier run saved")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other requests")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run_here(options.run, options.seed, options.limit, options.case)))
        return
    if options.again is None:
        measure_all(options.cases, options.seed)
    report(predict(options.again or options.cases))


if __name__ == "__main__":
    main()
