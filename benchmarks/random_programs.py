"""Random programs for differential.py: what is allocated, freed and shared, and under which setting."""

from __future__ import annotations

import random
from typing import NamedTuple

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


class Step(NamedTuple):
    """One thing to do: malloc, free, share (a free while another stream uses the block), empty_cache or capture.

    `stream` and `pick` are indexes, into the streams and into what is live; `size` is bytes.
    """

    action: str
    size: int
    stream: int
    pooled: bool
    pick: int


class Case(NamedTuple):
    steps: list[Step]
    conf: str
    limit: int | None


def case(seed: int, captures: bool = True) -> Case:
    rng = random.Random(seed)
    steps, conf, limit = program(rng), rng.choice(CONFS), rng.choice((None, rng.randrange(1 << 30, 6 << 30)))
    return Case(with_captures(steps, random.Random(-1 - seed)) if captures else steps, conf, limit)


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


def with_captures(steps: list[Step], rng: random.Random) -> list[Step]:
    """The same steps; in one program of four some allocations are made in a CUDA graph."""
    share = rng.choice((0, 0, 0, 0.02))
    return [s._replace(action="capture") if s.action == "malloc" and rng.random() < share else s for s in steps]


def kinds(case: Case) -> list[str]:
    """What a program exercises, apart from its setting."""
    traits = {
        "shared": any(step.action == "share" for step in case.steps),
        "mempool": any(step.pooled for step in case.steps),
        "graph": any(step.action == "capture" for step in case.steps),
        "limited": case.limit is not None,
    }
    return [case.conf, *(f"{case.conf} {trait}" for trait, has in traits.items() if has)]
