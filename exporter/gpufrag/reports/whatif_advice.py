"""`gpufrag whatif`: the setting to take, and what maintainers warn of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..model.settings import Settings
from ..model.whatif import Outcome, Run

WORTHWHILE = 0.02
"""A setting that saves less of the peak than this is not worth a change, however sure the figure."""

RISKS = {
    "expandable_segments": "blocks cannot be shared by CUDA IPC before torch 2.5; buffers registered with NCCL or RDMA "
    "may need non-expandable memory; growing and flushing wait for the stream",
    "max_split_size": "blocks above the size are never cut, so whole ones lie idle: near the limit that can itself "
    "run out of memory, and more cudaMalloc and cudaFree calls slow steps down",
    "roundup_power2_divisions": "every request is rounded up: what is saved in fragmentation is paid in waste inside "
    "blocks (peak active rises)",
    "garbage_collection_threshold": "acts only where a memory fraction is set; segments that it frees are often "
    "asked for again, at the latency of cudaMalloc",
}


@dataclass(frozen=True)
class Candidate:
    """One setting and what it came to; `smallest_limit` is None where it was not asked for or not found.

    `packed` is whether it began with the older blocks alone, and not with the memory that was cached beside them.
    """

    conf: str
    settings: Settings
    recorded: bool
    packed: bool
    outcome: Outcome
    smallest_limit: int | None = None


@dataclass(frozen=True)
class Compared:
    """One device's run under the recorded setting, which comes first, and under each candidate.

    Of a trace that begins late the recorded setting is there twice: as it was, and packed as the others are.
    """

    device: int
    run: Run
    candidates: Sequence[Candidate]
    limit: int | None
    searched: bool = False
    """Whether the smallest limits were asked for."""


@dataclass(frozen=True)
class Advice:
    """The setting to take; `change` is false where the recorded one should stay."""

    take: Candidate
    change: bool
    saves: int
    """Bytes of peak reserved memory, against the recorded setting; below 0 it costs them."""
    risks: list[str] = field(default_factory=list)


def advise(candidates: Sequence[Candidate]) -> Advice:
    """The fewest failed requests first, then the lowest peak; a change must be worth it.

    The recorded setting is compared from where the others begin.
    """
    packed = [candidate for candidate in candidates if candidate.packed]
    recorded = packed[0]
    best = min(packed, key=lambda c: (c.outcome.failed, c.outcome.peak_reserved))
    saves = recorded.outcome.peak_reserved - best.outcome.peak_reserved
    rescued = best.outcome.failed < recorded.outcome.failed
    if not rescued and (saves <= 0 or saves < WORTHWHILE * recorded.outcome.peak_reserved):
        return Advice(recorded, False, 0)
    return Advice(best, True, saves, _risks(best.settings, recorded.settings))


def _risks(settings: Settings, before: Settings) -> list[str]:
    return [text for name, text in RISKS.items() if getattr(settings, name) != getattr(before, name)]
