"""The simulated allocator against the allocators of torch's releases, on random programs. No GPU is needed.

    PYTHONPATH=exporter:tests python3 benchmarks/differential.py --torch 2.15.0 [--programs 300] [--keep DIR]

Each program (streams, MemPools, CUDA graphs, empty_cache, limits, a neighbour that takes memory, all settings) runs on
the release's own allocator over tests/fake_cuda. `gpufrag replay` then reads the recording as a user's. Exact means:
the same segments at the same addresses come and go, the heap ends block for block as recorded, the same requests fail,
and the same number of flushes is counted. Where a trace does not show whether a request flushed, the program counts as
doubtful: then the flushes differ by no more than the doubts that the reader reports.

The order in which one flush frees its segments follows hash tables in torch, and is not compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from random_programs import Case, case

from fake_cuda import allocator
from fake_cuda.releases import NEWEST, minor
from gpufrag.model.trace.events import SHRINKS, Event
from gpufrag.model.trace.whatif import begin, shape
from gpufrag.snapshot_file.recording import read_recording, read_run_of

Change = tuple[str, int, int]


def verdict(recorded: dict[str, Any]) -> tuple[str, str]:
    """Return "exact", "doubtful" or "different", and what differs."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(recorded, file)
        file.flush()
        recording = read_recording(file.name)
    run = read_run_of(recording, recording.limit)
    seen: list[Event] = []
    replay = begin(run, run.end.settings, run.recorded_limit, observe=seen.append)
    replay.run()
    counters, stats = replay.allocator.counters, recorded["stats"]
    expandable = run.end.settings.expandable_segments  # torch chooses where their address space lies
    real = sorted_runs(
        (e[0], 0 if expandable else e[1], e[2]) for e in recorded["events"] if e[0].startswith("segment")
    )
    ours = sorted_runs((e.action, 0 if expandable else e.address or 0, e.size) for e in seen)
    if real != ours:
        index = next((i for i, (a, b) in enumerate(zip(real, ours)) if a != b), min(len(real), len(ours)))
        return "different", f"segment event {index}: {real[index : index + 1]} in torch, {ours[index : index + 1]} here"
    if shape(replay.allocator.heap()) != shape(run.end) or replay.failed or counters.ooms != stats["num_ooms"]:
        return "different", f"heap or failed requests: {stats['num_ooms']} in torch, {counters.ooms} here"
    retries = counters.alloc_retries, stats["num_alloc_retries"]
    if retries[0] == retries[1]:
        return "exact", ""
    doubtful = abs(retries[0] - retries[1]) <= run.program.inferred
    return "doubtful" if doubtful else "different", f"{retries[1]} retries in torch, {retries[0]} here"


def sorted_runs(changes: Iterable[Change]) -> list[Change]:
    """The changes, with those of one flush in one order."""
    found: list[Change] = []
    flush: list[Change] = []
    for change in changes:
        if change[0] in SHRINKS:
            flush.append(change)
        else:
            found += [*sorted(flush), change]
            flush = []
    return found + sorted(flush)


def recordings(release: str, cases: Iterable[Case]) -> Iterator[tuple[Case, dict[str, Any]]]:
    for tried in cases:
        try:
            yield tried, allocator.run(release, [tried.text], tried.conf)[tried.name]
        except allocator.ProgramFailed as error:
            print(f"{tried.name}: torch itself failed: {str(error).splitlines()[0][:200]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=NEWEST, metavar="RELEASE")
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", default="", metavar="TRAITS", help="leave these out (comma-separated)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="save what differs: the program and its recording")
    options = parser.parse_args()
    without = frozenset(options.without.split(","))
    seeds = range(options.seed, options.seed + options.programs)
    count: Counter[str] = Counter()
    for tried, recorded in recordings(options.torch, (case(seed, minor(options.torch), without) for seed in seeds)):
        found, why = verdict(recorded)
        count[found] += 1
        if found == "different":
            print(f"{tried.name} ({tried.conf or 'no setting'}; {', '.join(sorted(tried.traits))}): {why}", flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{tried.name}.program").write_text(tried.text)
                (options.keep / f"{tried.name}.json").write_text(json.dumps(recorded))
    print(f"torch {options.torch}: {dict(count)} of {sum(count.values())} programs")
    return int(count["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
