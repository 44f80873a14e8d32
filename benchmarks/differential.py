"""The simulated allocator against the real one, on random programs.

    PYTHONPATH=exporter python3 benchmarks/differential.py [--programs 300] [--cases DIR]

Each program (allocations, frees, blocks shared between streams, a MemPool, captured CUDA graphs, empty_cache, a
limit) runs on the GPU under a random setting and is recorded; the simulator replays the recording. They must agree
in every segment that comes and goes, in the heap at the end block for block, in the counters and in the peaks.

A trace alone does not tell an empty_cache from a flush of the allocator's own, nor whether a block that another
stream used became free before a request or in its flush: that depends on the GPU's timing. So torch's counters are
read after each call, and the recording is marked with what they say. Each recording is also read without these
marks, as a user's is: it must lead to the same segments, heap and peaks, and to as many retries but for the flushes
that the reading says it had to infer.

A program on which they differ is made as short as possible, and with --cases DIR saved in the form of tests/golden.
Exits with 1 then. --examples DIR saves one short program of each kind on which they agree.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from random_programs import Case, case, kinds
from recorded_program import Recorded, record, save

from gpufrag.model.heap import parse
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import EMPTY_CACHE, GROWS, SHRINKS, Event
from gpufrag.model.trace.program import Replay
from gpufrag.model.trace.reading import places, read_program
from gpufrag.model.trace.whatif import shape

EXAMPLE_STEPS = 300


def difference(recorded: Recorded, events: Sequence[Event], marked: bool) -> str | None:
    """The first thing in which the simulator does not do as the real allocator did."""
    heap = parse(recorded.snapshot).on_device(0)
    told: list[Event] = []
    allocator = Allocator(heap.settings, recorded.driver, AddressSpace(places(events)), told.append)
    twin = Allocator(heap.settings, recorded.driver, AddressSpace(places(events)))
    program = read_program(events, allocator=twin)
    Replay(program, allocator).run()
    real = [event[::2] for event in events if event.action in GROWS | SHRINKS]
    for index, (ours, theirs) in enumerate(zip([event[::2] for event in told], real)):
        if ours != theirs:
            return f"segment event {index}: {ours} is {theirs} in torch"
    if len(told) != len(real):
        return f"{len(told)} segment events are {len(real)} in torch"
    if shape(allocator.heap()) != shape(heap):
        return "the heaps at the end differ"
    return _figures(allocator, recorded, None if marked else program.inferred)


def _figures(allocator: Allocator, recorded: Recorded, inferred: int | None) -> str | None:
    """`inferred` is how many flushes the reading had to infer; None where the recording told them."""
    counters, stats = allocator.counters, recorded.stats
    pairs = {
        "num_ooms": counters.ooms,
        "num_device_alloc": counters.device_allocs,
        "num_device_free": counters.device_frees,
        "reserved_bytes.all.peak": allocator.peak_reserved,
        "active_bytes.all.peak": allocator.peak_active,
    }
    if inferred is None:
        pairs |= {"num_alloc_retries": counters.alloc_retries, "num_sync_all_streams": counters.stream_syncs}
    elif abs(counters.alloc_retries - stats["num_alloc_retries"]) > inferred:
        return f"{counters.alloc_retries} retries are {stats['num_alloc_retries']} in torch, {inferred} inferred"
    return next((f"{k} {ours} is {stats[k]} in torch" for k, ours in pairs.items() if ours != stats[k]), None)


def shorten(tried: Case) -> Case:
    """Leaves out what is not needed for a difference, in ever smaller pieces."""
    size = len(tried.steps) // 2
    while size:
        start = 0
        while start < len(tried.steps):
            rest = tried._replace(steps=tried.steps[:start] + tried.steps[start + size :])
            recorded = record(rest)
            if difference(recorded, recorded.marked(), marked=True) is not None:
                tried = rest
            else:
                start += size
        size //= 2
    return tried


def keep_example(folder: Path, seen: set[str], tried: Case, recorded: Recorded) -> None:
    found = kinds(tried)
    if len(tried.steps) <= EXAMPLE_STEPS and not seen.issuperset(found):
        seen.update(found)
        save(folder, f"example-{len(list(folder.glob('*'))) if folder.exists() else 0}", recorded)


def report(seed: int, tried: Case, found: str, options: argparse.Namespace) -> None:
    if options.shorten:
        tried = shorten(tried)
    recorded = record(tried)
    again = difference(recorded, recorded.marked(), marked=True)
    print(f"program {seed}, {tried.conf}, limit {tried.limit}: {found}; {len(tried.steps)} steps: {again}", flush=True)
    if options.cases is not None:
        save(options.cases, f"differential-{seed}", recorded)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=Path, metavar="DIR")
    parser.add_argument("--examples", type=Path, metavar="DIR")
    parser.add_argument("--shorten", type=int, default=2, metavar="N", help="make the first N differences short")
    parser.add_argument("--no-captures", action="store_true", help="leave CUDA graphs out")
    options = parser.parse_args()
    torch.cuda.init()
    agreeing: Counter[str] = Counter()
    seen: set[str] = set()
    for seed in range(options.seed, options.seed + options.programs):
        tried = case(seed, captures=not options.no_captures)
        recorded = record(tried)
        marked = recorded.marked()
        found = difference(recorded, marked, marked=True)
        unmarked = difference(recorded, recorded.events(), marked=False)
        agreeing += Counter(marked=found is None, unmarked=unmarked is None, captures="graph" in str(kinds(tried)))
        agreeing += Counter(calls=sum(e.action == EMPTY_CACHE for e in marked), shown=recorded.told_by_stacks())
        if found is not None:
            report(seed, tried, found, options)
            options.shorten = max(0, options.shorten - 1)
            continue
        if unmarked is not None:
            print(f"program {seed} without marks, {tried.conf}, limit {tried.limit}: {unmarked}", flush=True)
        if options.examples is not None:
            keep_example(options.examples, seen, tried, recorded)
    print(f"{agreeing['marked']} of {options.programs} programs agree, {agreeing['captures']} with CUDA graphs")
    print(f"{agreeing['unmarked']} of {options.programs} do so when the trace is read without marks")
    print(f"stacks show {agreeing['shown']} of {agreeing['calls']} empty_cache calls: those that gave something back")
    return int(agreeing["marked"] < options.programs)


if __name__ == "__main__":
    sys.exit(main())
