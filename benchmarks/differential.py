"""The simulated allocator against the allocators of torch's releases, on random programs. No GPU is needed.

    PYTHONPATH=exporter:tests python3 benchmarks/differential.py --torch 2.15.0 [--programs 300] [--keep DIR]

Each program (streams, MemPools, CUDA graphs, empty_cache, limits, a neighbour that takes memory, all settings) runs on
the release's own allocator over tests/fake_cuda. `gpufrag replay` then reads the recording as a user's. Exact means:
the same segments at the same addresses come and go, the heap ends block for block as recorded, the same requests fail,
and the same number of flushes is counted. Doubtful: only the number of flushes differs, by no more than the doubts that
the replay states. Reported: the replay states that it differs from the recording, and where. Different: all others.

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
from gpufrag.model.trace.events import Event
from gpufrag.model.trace.verification import difference
from gpufrag.model.trace.whatif import begin
from gpufrag.snapshot_file.recording import read_recording, read_run_of


def verdict(recorded: dict[str, Any]) -> tuple[str, str]:
    """Return "exact", "doubtful", "reported" or "different", and what differs."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(recorded, file)
        file.flush()
        recording = read_recording(file.name)
    run = read_run_of(recording, recording.limit)
    seen: list[Event] = []
    replay = begin(run, run.end.settings, run.recorded_limit, observe=seen.append)
    replay.run()
    reported = difference(recording.events, seen, replay, run)
    if reported is not None:
        return "reported", reported
    retries = replay.allocator.counters.alloc_retries, recorded["stats"]["num_alloc_retries"]
    if retries[0] == retries[1]:
        return "exact", ""
    doubtful = abs(retries[0] - retries[1]) <= run.program.inferred
    return "doubtful" if doubtful else "different", f"{retries[1]} retries in torch, {retries[0]} here"


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
        if found in ("reported", "different"):
            print(
                f"{tried.name} ({tried.conf or 'no setting'}; {', '.join(sorted(tried.traits))}): {found}: {why}",
                flush=True,
            )
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{tried.name}.program").write_text(tried.text)
                (options.keep / f"{tried.name}.json").write_text(json.dumps(recorded))
    print(f"torch {options.torch}: {dict(count)} of {sum(count.values())} programs")
    return int(count["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
