"""`gpufrag whatif`: the setting to take, and what maintainers warn of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..model.settings import Settings
from ..model.trace.whatif import Outcome, Run

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

    @property
    def bound(self) -> int | None:
        """The limit of the recorded setting: that of the process, or its per_process_memory_fraction's."""
        return self.limit_of(self.candidates[0])

    def limit_of(self, candidate: Candidate) -> int | None:
        return self.run.limit_under(candidate.settings, self.limit)


@dataclass(frozen=True)
class Advice:
    """The setting to take; `change` is false where the recorded one should stay."""

    take: Candidate
    change: bool
    saves: int | None
    """Bytes of peak reserved memory, against the recorded setting; below 0 it costs them. None where requests fail
    under it too: a run that did not get its memory has no peak to compare."""
    risks: list[str] = field(default_factory=list)


def advise(candidates: Sequence[Candidate]) -> Advice:
    """The fewest failed requests first, then the lowest peak; a change must be worth it.

    Where none gets by without a failed request, the smallest limit counts before their number, if it was searched.
    The recorded setting is compared from where the others begin.
    """
    packed = [candidate for candidate in candidates if candidate.packed]
    recorded = packed[0]
    best = min(packed, key=_cost)
    if best.outcome.failed:
        return _advise_where_all_fail(packed)
    saves = recorded.outcome.peak_reserved - best.outcome.peak_reserved
    worth = saves > 0 and saves >= WORTHWHILE * recorded.outcome.peak_reserved
    if worth or recorded.outcome.failed:
        return Advice(best, True, saves, _risks(best.settings, recorded.settings))
    return Advice(recorded, False, 0)


def _advise_where_all_fail(packed: Sequence[Candidate]) -> Advice:
    recorded, best = packed[0], min(packed, key=_cost_of_failing)
    needs, needed = best.smallest_limit, recorded.smallest_limit
    nearer = needs is not None and (needed is None or needed - needs >= WORTHWHILE * needed)
    if nearer or best.outcome.failed < recorded.outcome.failed:
        return Advice(best, True, None, _risks(best.settings, recorded.settings))
    return Advice(recorded, False, None)


def _cost(candidate: Candidate) -> tuple[float, ...]:
    return candidate.outcome.failed, candidate.outcome.peak_reserved


def _cost_of_failing(candidate: Candidate) -> tuple[float, ...]:
    needs = candidate.smallest_limit
    return math.inf if needs is None else needs, *_cost(candidate)


def _risks(settings: Settings, before: Settings) -> list[str]:
    return [text for name, text in RISKS.items() if getattr(settings, name) != getattr(before, name)]
