"""largest_allocatable against the real allocator, on random layouts.

    PYTHONPATH=exporter python3 benchmarks/exactness.py [--layouts 200] [--out exactness.json]

Each layout: random allocations and frees under one setting (default, max_split_size, roundup, expandable segments),
with and without a limit, on several streams, with a live CUDA graph and a MemPool in some. The heap is measured,
then requests are really made, each from the flushed state: the predicted largest must succeed and 512 bytes more
must fail, as must a ladder of sizes above (success need not be monotonic). Where that does not hold, the true
largest is found by bisection, and with --cases DIR the layout is saved as a case in the form of tests/golden.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import torch
from driver_reserve import Runtime

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import parse

MIB = 1 << 20
CONFS = {
    "default": "",
    "maxsplit": "max_split_size_mb:64",
    "roundup": "roundup_power2_divisions:4",
    "roundup-list": "roundup_power2_divisions:[64:2,256:1,>:8]",
    "expandable": "expandable_segments:True",
    "expandable-roundup": "expandable_segments:True,roundup_power2_divisions:8",
    "maxsplit-rounding": "max_split_size_mb:100,max_non_split_rounding_mb:64",
    "page64": "expandable_segments:True,large_segment_size_mb:64",
}


@dataclass(frozen=True)
class Row:
    """One layout: what was predicted and what the real allocator answered, in bytes."""

    conf: str
    seed: int
    index: int
    limit: int | None
    free: int
    predicted: int
    truth: int
    exact: bool
    blocks: int
    graph: bool
    mempool: bool
    ratio: float | None

    @property
    def off(self) -> int:
        return self.predicted - self.truth


def worker(conf: str, layouts: int, seed: int, cases: str | None) -> list[Row]:
    """Measure and probe `layouts` random heaps in this process (a setting holds for a whole process)."""
    driver = Runtime()
    return [probe(driver, conf, seed, index, cases) for index in range(layouts)]


def probe(driver: Runtime, conf: str, seed: int, index: int, cases: str | None) -> Row:
    rng = random.Random(seed * 1000 + index)
    limit = set_limit(rng.choice((None, rng.randrange(2 << 30, 12 << 30))))
    torch.cuda.empty_cache()
    ballast = None
    if limit is None and index % 8:  # make the driver tight, from outside the allocator: probes are quick then
        ballast = driver.malloc(torch.cuda.mem_get_info()[0] - rng.randrange(3 << 30, 12 << 30))
    held, graph, pool = layout(rng, index)
    torch.cuda.synchronize()
    raw = torch.cuda.memory._snapshot()
    free, size = torch.cuda.mem_get_info()
    heap = parse(raw).on_device(0)
    measured = measure(heap, Driver(free, size, limit), stream=0)
    predicted = measured.largest_allocatable or 0
    truth, exact = search(predicted)
    blocks = sum(len(segment.sizes) for segment in heap.segments)
    row = Row(conf, seed, index, limit, free, predicted, truth, exact, blocks,
              graph is not None, pool is not None, measured.ratio)  # fmt: skip
    if cases and not exact:
        save_case(cases, row, raw, size)
    del held, graph, pool
    torch.cuda.synchronize()
    if ballast is not None:
        driver.free(ballast)
    return row


def set_limit(limit: int | None) -> int | None:
    """Cap the process; returns the bytes that the allocator makes of it."""
    total = torch.cuda.get_device_properties(0).total_memory
    fraction = 1.0 if limit is None else limit / total
    torch.cuda.set_per_process_memory_fraction(fraction)
    return None if limit is None else int(fraction * total)


def layout(rng, index):
    """Random blocks, some freed again; in a quarter each a captured graph, or a MemPool, that stays."""
    streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(rng.choice((0, 0, 2)))]
    top = rng.choice((1 << 20, 64 << 20, 400 << 20))
    held, graph, pool = [], None, None
    if index % 4 == 1:
        graph = torch.cuda.CUDAGraph()
        static = torch.zeros(1 << 20, device="cuda")
        with torch.cuda.graph(graph):
            doubled = static * 2
            held.append(doubled + 1)
            del doubled
    if index % 4 == 2:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
            gone = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
            del gone
    for _ in range(rng.randrange(50, 400)):
        with torch.cuda.stream(rng.choice(streams)):
            size = int(2 ** rng.uniform(9, top.bit_length() - 1)) - rng.randrange(256)
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                break
        if rng.random() < 0.4:
            held.pop(rng.randrange(len(held)))
    rng.shuffle(held)
    return held[: max(1, len(held) // rng.choice((1, 2, 3, 8)))], graph, pool


def succeeds(size: int) -> bool:
    torch.cuda.empty_cache()
    try:
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return False
    del block
    return True


def search(predicted: int) -> tuple[int, bool]:
    """(the true largest to 512 bytes, whether it is the predicted one)."""
    ladder = [predicted + step * MIB for step in (1, 2, 4, 10, 20, 40, 200)]
    fits = [size for size in ladder if succeeds(size)]
    low_ok = succeeds(predicted)
    if low_ok and not fits and not succeeds(predicted + 1):
        return predicted, True
    low = max(fits, default=predicted if low_ok else max(512, predicted - 200 * MIB))
    high = low + 200 * MIB if fits or low_ok else predicted
    while high - low > 512:
        middle = (low + high) // 2 // 512 * 512
        low, high = (middle, high) if succeeds(middle) else (low, middle)
    return low, False


def save_case(folder: str, row: Row, raw: dict, total: int) -> None:
    for segment in raw["segments"]:
        for record in (segment, *segment["blocks"]):
            record.pop("frames", None)
    case = {
        "workload": "layout",
        "seed": row.seed,
        "conf": row.conf,
        "settings": raw["allocator_settings"],
        "cap_bytes": row.limit or 0,
        "driver_free": row.free,
        "driver_total": total,
        "segments": raw["segments"],
        "largest_request_that_succeeds": row.truth,
    }
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/layout-{row.seed}-{row.index}.json", "w") as file:
        json.dump(case, file)


def report(rows: list[Row]) -> None:
    for limited in (True, False):
        some = [row for row in rows if (row.limit is not None) == limited]
        exact = sum(row.exact for row in some)
        worst = max((abs(row.off) for row in some), default=0)
        print(f"{'limit' if limited else 'no limit'}: {exact} of {len(some)} exact, worst off by {worst / MIB:.3f} MiB")
    for row in rows:
        if not row.exact:
            print(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", type=int, default=200)
    parser.add_argument("--out")
    parser.add_argument("--cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    each = -(-options.layouts // len(CONFS))
    if options.worker is not None:
        found = worker(options.worker, each, options.seed, options.cases)
        json.dump([asdict(row) for row in found], sys.stdout)
        return
    rows: list[Row] = []
    for number, (name, conf) in enumerate(CONFS.items()):
        started = time.monotonic()
        command = [sys.executable, __file__, "--worker", conf, "--layouts", str(options.layouts)]
        command += ["--seed", str(options.seed + number), *(["--cases", options.cases] if options.cases else [])]
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        rows += [Row(**row) for row in json.loads(done.stdout)]
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump([asdict(row) for row in rows], file)
    report(rows)


if __name__ == "__main__":
    main()
