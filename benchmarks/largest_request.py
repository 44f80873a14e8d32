"""largest_allocatable against the allocators of all torch releases, on random heaps, without a GPU.

    PYTHONPATH=exporter:tests python3 benchmarks/largest_request.py [--heaps 1000] [--releases 2.15.0 ...]

Each heap: random allocations and frees on several streams, in MemPools and CUDA graphs, under a random setting, with a
limit, or a small device, or another process. The allocator itself finds its largest request by bisection, to 512
bytes. Success need not be monotonic in the size: where the figures differ, the predicted size must succeed and every
larger size of a ladder must fail. Exits with 1 if a heap differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fake_cuda import allocator
from fake_cuda.releases import RELEASES, minor
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.snapshot_file.recording import read_recording

MIB, GIB = 1 << 20, 1 << 30
CONFS = {  # and the first minor release of torch 2 that has the setting
    "": 1,
    "expandable_segments:True": 1,
    "max_split_size_mb:64": 1,
    "roundup_power2_divisions:4": 1,
    "roundup_power2_divisions:[64:2,256:1,>:8]": 1,
    "expandable_segments:True,roundup_power2_divisions:8": 1,
    "max_split_size_mb:100,max_non_split_rounding_mb:64": 6,
    "expandable_segments:True,large_segment_size_mb:64": 11,
    "expandable_segments:True,expandable_segments_reserve:0.5G": 15,
}
STEPS = (512, 4096, MIB, 2 * MIB, 20 * MIB, 64 * MIB, GIB)


class Difference(NamedTuple):
    release: str
    conf: str
    name: str
    predicted: int | None
    found: int


def heaps(seed: int, count: int, minor_release: int) -> dict[str, list[str]]:
    """Random programs that end in a heap, by the setting under which they run."""
    rng = random.Random(f"{seed} {minor_release}")
    confs = [conf for conf, since in CONFS.items() if since <= minor_release]
    programs: dict[str, list[str]] = defaultdict(list)
    for index in range(count):
        programs[rng.choice(confs)].append("\n".join(_program(rng, f"h{index}", minor_release)))
    return programs


def _program(rng: random.Random, name: str, minor_release: int) -> Iterator[str]:
    total = rng.choice((80 * GIB, rng.randrange(2 * GIB, 12 * GIB)))
    limit = rng.choice((0, rng.randrange(GIB, 6 * GIB))) if total == 80 * GIB else 0
    other = rng.choice((0, rng.randrange(0, total // 2)))
    yield f"program {name} total={total} free={total - 400 * MIB} limit={limit} other={other}"
    top = rng.choice((1 << 20, 20 * MIB, 200 * MIB, 600 * MIB))
    streams, shared = rng.choice((1, 1, 3)), rng.choice((0, 0, 0.3))
    live: list[int] = []
    pools = 0
    yield f"pending {int(shared > 0)}"
    for block in range(rng.randrange(20, 300)):
        if live and rng.random() < 0.45:
            freed = live.pop(rng.randrange(len(live)))
            if rng.random() < shared:
                yield f"share {freed} 8"
            yield f"free {freed}"
            continue
        request = f"malloc {block} {int(rng.randrange(512, top) ** rng.choice((1, 0.8)))}"
        kind = rng.random()
        if kind < 0.04 and minor_release >= 6:
            pools += 1
            yield from (f"pool {pools}", f"use {pools}", request, f"unuse {pools}")
        elif kind < 0.06:
            pools += 1
            yield from (f"capture {pools} 9", f"{request} 9", f"captured {pools}")
        else:
            yield f"{request} {rng.randrange(streams)}"
        live.append(block)
        if kind > 0.98:
            yield "empty_cache"
    yield "largest"


def predict(case: Mapping[str, Any]) -> int | None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(case, file)
        file.flush()
        heap = read_recording(Path(file.name)).end
    driver = Driver(case["driver_free"], case["driver_total"], case["cap_bytes"] or None)
    return measure(heap, driver, stream=0).largest_allocatable


def differences(release: str, seed: int, count: int) -> Iterator[Difference]:
    """The heaps whose prediction differs from the allocator."""
    for conf, programs in heaps(seed, count, minor(release)).items():
        texts = {text.split()[1]: text for text in programs}
        for name, case in allocator.run(release, programs, conf).items():
            predicted, found = predict(case), case["largest"][-1]
            if predicted != found and not _holds(release, conf, texts[name], predicted):
                yield Difference(release, conf, name, predicted, found)


def _holds(release: str, conf: str, text: str, predicted: int | None) -> bool:
    """Whether the predicted request succeeds and larger ones fail."""
    if predicted is None:
        return False
    probes = [f"try {predicted + more}" for more in (0, *STEPS)]
    (case,) = allocator.run(release, [text.replace("largest", "\n".join(probes))], conf).values()
    return case["tried"] == [True] + [False] * len(STEPS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heaps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--releases", nargs="+", default=RELEASES)
    options = parser.parse_args()
    failed = False
    for release in options.releases:
        began = time.monotonic()
        found = list(differences(release, options.seed, options.heaps))
        failed |= bool(found)
        took = time.monotonic() - began
        print(f"torch {release}: {options.heaps - len(found)} of {options.heaps} heaps exact, {took:.0f} s", flush=True)
        for difference in found[:5]:
            print(f"  {difference}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
