"""How fast the simulated allocator is: on recorded traces, and with up to a million live blocks.

    PYTHONPATH=exporter python3 benchmarks/simulator.py [--golden tests/golden]

Prints, per recorded case, trace events a second (best of five; reading the trace is timed separately), then the time to
replay a long program under seven settings, as `gpufrag whatif` does on one core, then the time per operation while the
number of live blocks grows. With n log n it grows by a constant for each factor of ten. Next to it is the time of a
look-up in a dict of as many random keys, which needs one step at any size: it shows how memory itself slows down.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import Settings, parse_conf, parse_recorded
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.events import parse_rows
from gpufrag.model.trace.program import FREE, MALLOC, Operation, Program, Replay
from gpufrag.model.trace.reading import read_program

LONG = 329_000
CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:4",
)
GOLDEN = Path(__file__).parent.parent / "tests" / "golden"


def best_seconds(run: Callable[[], object], times: int = 5) -> float:
    def once() -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    return min(once() for _ in range(times))


def print_recorded(path: Path) -> None:
    with gzip.open(path, "rt") as file:
        raw = json.load(file)
    settings, limit = parse_recorded({**raw["settings"], "torch": raw["torch"]}), raw["cap_bytes"] or None
    driver = Driver(raw["driver_free_before"], raw["driver_total"], limit)
    events = parse_rows(raw["events"], raw["events_columns"])
    program = read_program(events, settings, limit)
    reading = best_seconds(lambda: read_program(parse_rows(raw["events"], raw["events_columns"]), settings, limit))
    running = best_seconds(lambda: Replay(program, Allocator(settings, driver)).run())
    name = path.name.removesuffix(".json.gz")
    print(
        f"{name:24} {len(events):7,} events {len(events) / running:12,.0f}/s (reading {len(events) / reading:,.0f}/s)"
    )


def long_program(path: Path) -> Program:
    """LONG operations: those of a recorded case again and again; each time frees what it left."""
    with gzip.open(path, "rt") as file:
        raw = json.load(file)
    program = read_program(parse_rows(raw["events"], raw["events_columns"]))
    operations: list[Operation] = []
    allocations = 0
    while len(operations) < LONG:
        live: dict[int, Operation] = {}
        for recorded in program.operations:
            operation = recorded._replace(allocation=recorded.allocation + allocations)
            operations.append(operation)
            if operation.kind == MALLOC:
                live[operation.allocation] = operation
            else:
                del live[operation.allocation]
        operations += [operation._replace(kind=FREE) for operation in live.values()]
        allocations += program.allocations
    return Program(tuple(operations), allocations)


def print_settings(path: Path) -> None:
    program = long_program(path)
    total = 0.0
    for conf in CONFS:
        settings, driver = parse_conf(conf), Driver(limit=40 << 30)
        seconds = best_seconds(lambda: Replay(program, Allocator(settings, driver)).run())  # noqa: B023 (called at once)
        total += seconds
        print(f"{len(program.operations):,} operations, {conf or 'default':52} {seconds:.2f} s")
    print(f"{len(CONFS)} settings {total:.2f} s")


def churn(live: int, settings: Settings) -> float:
    """Seconds per operation: half of `live` blocks are freed at random and asked for again in other sizes."""
    order = random.Random(live)
    sizes = [order.choice((512, 8 << 10, 300 << 10, 3 << 20)) + order.randrange(512, 200_000) for _ in range(live)]
    allocator = Allocator(settings)
    blocks = [block for block in map(allocator.malloc, sizes) if block is not None]
    order.shuffle(blocks)
    order.shuffle(sizes)
    half = live // 2
    start = time.process_time()
    for block in blocks[:half]:
        allocator.free(block)
    for size in sizes[:half]:
        allocator.malloc(size)
    return (time.process_time() - start) / (2 * half)


def look_up(count: int) -> float:
    """Seconds for a look-up in a dict of `count` entries, in random order."""
    order = random.Random(count)
    entries = {order.randrange(1 << 70): object() for _ in range(count)}
    keys = list(entries) * max(1, 200_000 // count)
    order.shuffle(keys)
    start = time.process_time()
    for key in keys:
        entries[key]
    return (time.process_time() - start) / len(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, default=GOLDEN)
    options = parser.parse_args()
    for path in sorted(options.golden.glob("*.json.gz")):
        print_recorded(path)
    print_settings(options.golden / "train-default.json.gz")
    for name, settings in (("default", Settings()), ("expandable", Settings(expandable_segments=True))):
        for live in (1_000, 10_000, 100_000, 1_000_000):
            print(f"{name:12} {live:9,} live blocks {churn(live, settings) * 1e6:8.2f} us per operation")
    for count in (1_000, 10_000, 100_000, 1_000_000):
        print(f"{'dict':12} {count:9,} entries     {look_up(count) * 1e6:8.2f} us per look-up")


if __name__ == "__main__":
    main()
