"""The simulated allocator against the real one, on random programs.

    PYTHONPATH=exporter python3 benchmarks/differential.py [--programs 300] [--cases DIR]

Each program (allocations, frees, blocks shared between streams, a MemPool, empty_cache, a limit) runs on the GPU
under a random setting and is recorded; the simulator replays the recording. They must agree in every segment that
comes and goes, in the heap at the end block for block, in the counters and in the peaks. A program on which they
differ is made as short as possible, and with --cases DIR saved in the form of tests/golden. Exits with 1 then.
--examples DIR saves one short program of each kind on which they agree.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpufrag.model.addresses import AddressSpace
from gpufrag.model.allocator import Allocator
from gpufrag.model.events import ALLOC, GROWS, OOM, SHRINKS, Event, parse_trace, read_program
from gpufrag.model.heap import parse
from gpufrag.model.reach import Driver
from gpufrag.model.replay import Replay
from gpufrag.model.whatif import shape

MIB = 1 << 20
CONFS = (
    "max_split_size_mb:64",
    "max_split_size_mb:100,max_non_split_rounding_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[64:2,256:1,>:8]",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8,max_split_size_mb:200",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,large_segment_size_mb:64",
    "large_segment_size_mb:32",
    "expandable_segments:False",
)
KEPT = "expandable_segments:False,large_segment_size_mb:20"
"""What torch keeps from one setting to the next where the next does not name it."""
EXAMPLE_STEPS = 300
POOL = (0, 1)  # what the trace of torch 2.11 does not tell; any private id will do


class Step(NamedTuple):
    """`stream` and `pick` are indexes, into the streams and into what is live; `size` is bytes."""

    action: str
    size: int
    stream: int
    pooled: bool
    pick: int


def program(rng: random.Random) -> list[Step]:
    """Sizes and lifetimes differ in kind from program to program."""
    tops = rng.choice(((1 << 12, 1 << 20), (1 << 20, 20 * MIB), (1 << 10, 200 * MIB), (30 * MIB, 300 * MIB)))
    frees, shared = rng.uniform(0.3, 0.7), rng.choice((0, 0, 0.1))
    flushes, pooled, streams = rng.choice((0, 0.01)), rng.choice((0, 0, 0.2)), rng.choice((1, 1, 3))

    def step() -> Step:
        kind = rng.random()
        action = "empty_cache" if kind < flushes else "free" if kind < frees else "malloc"
        if action == "free" and rng.random() < shared:
            action = "share"
        size = rng.randrange(1, rng.choice(tops))
        return Step(action, size, rng.randrange(streams), rng.random() < pooled, rng.randrange(1 << 30))

    return [step() for _ in range(rng.randrange(50, 1200))]


class Recorded(NamedTuple):
    """What the real allocator did; `pools` tells the pool of each request, in order."""

    conf: str
    limit: int
    snapshot: dict[str, Any]
    stats: dict[str, Any]
    pools: list[tuple[int, int]]
    driver: Driver


def record(steps: list[Step], conf: str, limit: int | None) -> Recorded:
    """Runs the steps from an empty allocator, and leaves an empty one behind."""
    torch.cuda.memory._set_allocator_settings(f"{KEPT},{conf}")
    free, size = torch.cuda.mem_get_info()
    fraction = 1.0 if limit is None else limit / size
    torch.cuda.set_per_process_memory_fraction(fraction)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.memory._record_memory_history(context=None)
    with run(steps) as pools:
        snapshot, stats = torch.cuda.memory._snapshot(), torch.cuda.memory_stats()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0, "the program left memory behind"
    allowed = int(fraction * size)  # torch 2.11 takes 1.0 for a limit too
    return Recorded(conf, allowed, snapshot, stats, pools, Driver(free, size, allowed))


@contextlib.contextmanager
def run(steps: list[Step]) -> Iterator[list[tuple[int, int]]]:
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    other, pool = torch.cuda.Stream(), torch.cuda.MemPool()
    live: list[torch.Tensor] = []
    pools: list[tuple[int, int]] = []
    for step in steps:
        if step.action == "malloc":
            pools.append(POOL if step.pooled else (0, 0))
            scope = torch.cuda.use_mem_pool(pool) if step.pooled else contextlib.nullcontext()
            with torch.cuda.stream(streams[step.stream]), scope, contextlib.suppress(torch.OutOfMemoryError):
                live.append(torch.empty(step.size, dtype=torch.uint8, device="cuda"))
        elif step.action == "empty_cache":
            torch.cuda.empty_cache()
        elif live:
            tensor = live.pop(step.pick % len(live))
            if step.action == "share":
                with torch.cuda.stream(other):
                    torch.cuda._sleep(step.pick % 2_000_000)  # up to about a millisecond
                tensor.record_stream(other)
            del tensor
    yield pools
    live.clear()
    del pool


def events_of(recorded: Recorded) -> list[Event]:
    pools = iter(recorded.pools)
    events = parse_trace(recorded.snapshot["device_traces"][0])
    return [e._replace(pool=next(pools)) if e.action in (ALLOC, OOM) else e for e in events]


def difference(recorded: Recorded) -> str | None:
    """The first thing in which the simulator does not do as the real allocator did."""
    heap = parse(recorded.snapshot).on_device(0)
    events = events_of(recorded)
    told: list[Event] = []
    places = [(event.address or 0, event.size) for event in events if event.action == "segment_alloc"]
    allocator = Allocator(heap.settings, recorded.driver, AddressSpace(places), told.append)
    Replay(read_program(events, heap.settings, recorded.limit), allocator).run()
    real = [event[::2] for event in events if event.action in GROWS | SHRINKS]
    for index, (ours, theirs) in enumerate(zip([event[::2] for event in told], real)):
        if ours[:2] != theirs[:2]:
            return f"segment event {index}: {ours} is {theirs} in torch"
    if len(told) != len(real):
        return f"{len(told)} segment events are {len(real)} in torch"
    return _figures(allocator, recorded.stats) or _heaps(allocator, heap)


def _figures(allocator: Allocator, stats: dict[str, Any]) -> str | None:
    counters = allocator.counters
    pairs = {
        "num_alloc_retries": counters.alloc_retries,
        "num_ooms": counters.ooms,
        "num_device_alloc": counters.device_allocs,
        "num_device_free": counters.device_frees,
        "reserved_bytes.all.peak": allocator.peak_reserved,
        "active_bytes.all.peak": allocator.peak_active,
    }
    return next((f"{k} {ours} is {stats[k]} in torch" for k, ours in pairs.items() if ours != stats[k]), None)


def _heaps(allocator: Allocator, heap: Any) -> str | None:
    """Pools by whether they are private: their numbers differ."""
    ours, theirs = (sorted((row[0], row[1] != (0, 0), *row[2:]) for row in shape(h)) for h in (allocator.heap(), heap))
    return None if ours == theirs else "the heaps at the end differ"


def shorten(steps: list[Step], conf: str, limit: int | None) -> list[Step]:
    """Leaves out what is not needed for a difference, in ever smaller pieces."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            rest = steps[:start] + steps[start + size :]
            if difference(record(rest, conf, limit)) is not None:
                steps = rest
            else:
                start += size
        size //= 2
    return steps


def save(folder: Path, name: str, recorded: Recorded) -> None:
    """In the form of tests/golden, with the pool of each event."""
    case = {
        "workload": "differential",
        "torch": torch.__version__,
        "conf": recorded.conf,
        "settings": recorded.snapshot["allocator_settings"],
        "cap_bytes": recorded.limit,
        "driver_total": recorded.driver.size,
        "driver_free_before": recorded.driver.free,
        "events_columns": ["action", "addr", "size", "stream", "pool_id"],
        "events": events_of(recorded),
        "segments": [{k: v for k, v in s.items() if k != "frames"} for s in recorded.snapshot["segments"]],
        "stats": recorded.stats,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"{name}.json.gz", "wt") as file:
        json.dump(case, file, separators=(",", ":"))


def kinds(steps: list[Step], conf: str, limit: int | None) -> list[str]:
    """What a program exercises, apart from its setting."""
    traits = {
        "shared": any(step.action == "share" for step in steps),
        "mempool": any(step.pooled for step in steps),
        "limited": limit is not None,
    }
    return [conf, *(f"{conf} {trait}" for trait, has in traits.items() if has)]


def keep_example(folder: Path, seen: set[str], steps: list[Step], recorded: Recorded, limit: int | None) -> None:
    found = kinds(steps, recorded.conf, limit)
    if len(steps) <= EXAMPLE_STEPS and not seen.issuperset(found):
        seen.update(found)
        save(folder, f"example-{len(list(folder.glob('*'))) if folder.exists() else 0}", recorded)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=Path, metavar="DIR")
    parser.add_argument("--examples", type=Path, metavar="DIR")
    parser.add_argument("--shorten", type=int, default=10, metavar="N", help="make the first N differences short")
    options = parser.parse_args()
    torch.cuda.init()
    failures = 0
    seen: set[str] = set()
    for index in range(options.seed, options.seed + options.programs):
        rng = random.Random(index)
        steps, conf, limit = program(rng), rng.choice(CONFS), rng.choice((None, rng.randrange(1 << 30, 6 << 30)))
        recorded = record(steps, conf, limit)
        found = difference(recorded)
        if found is None:
            if options.examples is not None:
                keep_example(options.examples, seen, steps, recorded, limit)
            continue
        failures += 1
        if failures <= options.shorten:
            steps = shorten(steps, conf, limit)
            recorded = record(steps, conf, limit)
        print(
            f"program {index}, {conf}, limit {limit}: {found}; {len(steps)} steps: {difference(recorded)}", flush=True
        )
        if options.cases is not None:
            save(options.cases, f"differential-{index}", recorded)
    print(f"{options.programs - failures} of {options.programs} programs agree")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
