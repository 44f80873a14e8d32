"""Random programs for differential.py, as instructions for tests/fake_cuda and the settings that they run under."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

MIB, GIB = 1 << 20, 1 << 30
ODD_SIZES = (1, 1 << 12, MIB, MIB + 512, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB, 64 * MIB)
RANGES = ((512, 1 << 20), (1 << 20, 20 * MIB), (512, 256 * MIB), (30 * MIB, 300 * MIB))
CONFS: dict[str, int] = {
    "": 1,
    "expandable_segments:True": 1,
    "max_split_size_mb:64": 1,
    "roundup_power2_divisions:4": 1,
    "roundup_power2_divisions:[16:1,64:2,128:4,>:8]": 1,
    "garbage_collection_threshold:0.6": 1,
    "max_split_size_mb:32,garbage_collection_threshold:0.8": 1,
    "expandable_segments:True,roundup_power2_divisions:8": 1,
    "expandable_segments:True,garbage_collection_threshold:0.5": 1,
    "expandable_segments:True,max_split_size_mb:64": 5,
    "max_split_size_mb:100,max_non_split_rounding_mb:64": 6,
    "per_process_memory_fraction:0.04": 10,
    "large_segment_size_mb:32": 11,
    "expandable_segments:True,large_segment_size_mb:64": 11,
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.04": 12,
    "expandable_segments:True,expandable_segments_reserve:0.5G": 15,
    "expandable_segments:True,expandable_segments_reserve:0.01": 15,
}
"""PYTORCH_CUDA_ALLOC_CONF, and the first minor release of torch 2 that accepts it."""


@dataclass(frozen=True)
class Case:
    """A program, its setting, and what it exercises."""

    name: str
    conf: str
    text: str
    traits: frozenset[str]


def case(seed: int, minor: int, without: frozenset[str] = frozenset()) -> Case:
    """The program of this seed for torch 2.`minor`; `without` names traits to leave out."""
    rng = random.Random(f"{seed} {minor}")
    conf = rng.choice([conf for conf, since in CONFS.items() if since <= minor])
    program = _Program(rng, minor, conf, without)
    text = "\n".join(program.lines(f"p{seed}"))
    return Case(f"p{seed}", conf, text, frozenset(program.traits))


@dataclass
class _Program:
    rng: random.Random
    minor: int
    conf: str
    without: frozenset[str]
    traits: set[str] = field(default_factory=set)
    live: list[int] = field(default_factory=list)
    pools: dict[int, str] = field(default_factory=dict)
    """The options of each MemPool that is not dropped."""
    used: set[int] = field(default_factory=set)
    """The MemPools and graphs in which something was allocated."""
    graphs: list[int] = field(default_factory=list)
    owner: dict[int, int] = field(default_factory=dict)
    """The MemPool or graph of each block that has one."""
    count: int = 0
    made: int = 0
    other: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        self.streams = 3 if self._has("streams", 0.5) else 1
        self.pooled = self._has("pools", 0.3)
        # torch returns memory in the middle of a capture to collect garbage, which CUDA refuses
        self.captures = self._has("graphs", 0.3) and "garbage" not in self.conf
        self.flushes = self._has("empty_cache", 0.5)
        self.outside = self._has("outside", 0.2)
        self.range = rng.choice(RANGES)
        self.limit = self.total = 0

    def _has(self, trait: str, share: float) -> bool:
        found = self.rng.random() < share and trait not in self.without
        if found:
            self.traits.add(trait)
        return found

    def lines(self, name: str) -> Iterator[str]:
        rng = self.rng
        self.total = rng.choice((80 * GIB, 80 * GIB, 3 * GIB)) if "fraction" not in self.conf else 80 * GIB
        limit = (
            rng.randrange(GIB, min(4 * GIB, self.total)) if rng.random() < 0.6 and "fraction" not in self.conf else 0
        )
        if limit:
            self.traits.add("limit")
        self.other = 0
        yield f"program {name} total={self.total} free={self.total - 527 * MIB}" + (f" limit={limit}" if limit else "")
        yield "pending 1"
        target = 60
        for _ in range(rng.randrange(50, 1200)):
            if rng.random() < 0.01:
                target = rng.choice((5, 40, 90, 140, 200))
            yield from self._step(target)

    def _step(self, target: int) -> Iterator[str]:
        rng = self.rng
        if self.captures and rng.random() < 0.01:
            yield from self._capture()
        elif self.pooled and rng.random() < 0.05:
            yield from self._pooled()
        elif not self.live or rng.random() < (0.7 if len(self.live) < target else 0.35):
            yield self._malloc(rng.randrange(self.streams))
        else:
            yield from self._free()
        if self.streams > 1 and rng.random() < 0.05:
            yield "pass" if rng.random() < 0.7 else f"pass {rng.randrange(self.count + 1)}"
        if self.flushes and rng.random() < 0.004:
            yield "empty_cache"
        if self.outside and rng.random() < 0.01:
            most, least = self.total - GIB, max(0, self.total - 3 * GIB)
            yield f"other {rng.randrange(0 if rng.random() < 0.5 else least, most)}"

    def _size(self) -> int:
        low, high = self.range
        if self.rng.random() < 0.15:
            return self.rng.choice(ODD_SIZES)
        return int(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def _malloc(self, stream: int, pool: int = 0) -> str:
        self.count += 1
        if pool:
            self.owner[self.count] = pool
        self.live.append(self.count)
        return f"malloc {self.count} {self._size()} {stream}"

    def _free(self) -> Iterator[str]:
        rng = self.rng
        block = self.live.pop(rng.randrange(len(self.live)) if rng.random() < 0.7 else -1)
        if self.streams > 1 and rng.random() < 0.15:
            yield f"share {block} {self.streams + rng.randrange(3)}"
        yield f"free {block}"

    def _pooled(self) -> Iterator[str]:
        """A few requests in a MemPool, or the end of one."""
        rng = self.rng
        if self.pools and rng.random() < 0.2:
            pool = rng.choice(list(self.pools))
            if "use_on_oom" not in self.pools[pool]:  # torch asserts when it looks for memory in one that is gone
                del self.pools[pool]
                yield from self._drop(pool)
            return
        if not self.pools or rng.random() < 0.2:
            self.made += 1
            options = " use_on_oom" if self.minor >= 8 and self._has("use_on_oom", 0.3) else ""
            options += " no_split" if self.minor >= 10 and self._has("no_split", 0.2) else ""
            self.pools[self.made] = options
            yield f"pool {self.made}{options}"
        pool = rng.choice(list(self.pools))
        self.used.add(pool)
        yield f"use {pool}"
        for _ in range(rng.randrange(1, 8)):
            if self.live and rng.random() < 0.3:
                yield from self._free()
            else:
                yield self._malloc(rng.randrange(self.streams), pool)
        yield f"unuse {pool}"

    def _drop(self, pool: int) -> Iterator[str]:
        """The end of a MemPool or graph. With expandable segments torch loses track of blocks that are left in it."""
        if "expandable" in self.conf:
            left = [block for block in self.live if self.owner.get(block) == pool]
            for block in left:
                self.live.remove(block)
                yield f"free {block}"
        if self.minor >= 6 or pool in self.used:  # before 2.6 a MemPool begins with its first use
            yield f"drop {pool}"

    def _capture(self) -> Iterator[str]:
        """A CUDA graph in a pool of its own; or the end of one."""
        rng = self.rng
        if self.graphs and rng.random() < 0.4:
            yield from self._drop(self.graphs.pop(rng.randrange(len(self.graphs))))
            return
        self.made += 1
        self.graphs.append(self.made)
        self.used.add(self.made)
        stream = self.streams + 4
        yield "pass"
        yield f"capture {self.made} {stream}"
        begun = len(self.live)
        for _ in range(rng.randrange(1, 8)):
            if len(self.live) > begun and rng.random() < 0.3:
                yield f"free {self.live.pop()}"
            else:
                yield self._malloc(stream, self.made)
        yield f"captured {self.made}"
