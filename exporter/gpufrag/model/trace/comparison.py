"""A recorded run under several allocator settings, and which of them to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..settings import Settings
from .whatif import Outcome, Run, Start

WORTHWHILE = 0.02
"""Share of the peak that a setting must save to be worth a change."""

ANCHOR_RISK = (
    "other processes and libraries cannot use the anchor's memory; it serves only requests on torch's default stream, "
    "and the allocator can release it while it is unused"
)
RISKS = {
    "expandable_segments": "blocks cannot be shared by CUDA IPC before torch 2.5; buffers registered with NCCL or RDMA "
    "may need non-expandable memory; the job waits for its stream when a segment grows and when the cache is flushed",
    "max_split_size": "larger blocks are never split, so whole ones stay unused: near the limit that alone can run out "
    "of memory, and more cudaMalloc and cudaFree calls slow steps down",
    "roundup_power2_divisions": "every request is rounded up: less fragmentation, more waste inside blocks (peak "
    "active rises)",
    "garbage_collection_threshold": "acts only with a memory fraction; the segments that it frees are often allocated "
    "again, at the latency of cudaMalloc",
}


@dataclass(frozen=True)
class Candidate:
    """One setting and its outcome; `smallest_limit` is None if it was not searched or does not exist."""

    conf: str
    settings: Settings
    recorded: bool
    start: Start
    outcome: Outcome
    smallest_limit: int | None = None

    @property
    def packed(self) -> bool:
        """Whether the replay began with only the older blocks, without the memory that was cached next to them."""
        return self.start.packed


@dataclass(frozen=True)
class Compared:
    """One device's run under the recorded setting, which comes first, and under each candidate.

    If the trace begins late, the recorded setting appears three times: as recorded, after empty_cache, and packed like
    the others.
    """

    device: int
    run: Run
    candidates: Sequence[Candidate]
    limit: int | None
    searched: bool = False
    """Whether the smallest limits were searched."""
    name: str = ""
    """Of the file."""

    @property
    def bound(self) -> int | None:
        """The recorded setting's limit: the process's own, or per_process_memory_fraction."""
        return self.limit_of(self.candidates[0])

    def limit_of(self, candidate: Candidate) -> int | None:
        return self.run.limit_under(candidate.settings, self.limit)


@dataclass(frozen=True)
class Advice:
    """The setting to use; `change` is false if it is the recorded one."""

    take: Candidate
    recorded: Candidate
    """The recorded setting, with the same start as the others."""
    saves: int | None
    """Saved bytes of peak reserved memory, negative if it grows.

    None if requests fail under either setting: the peak of an incomplete run cannot be compared.
    """
    risks: list[str] = field(default_factory=list)

    @property
    def change(self) -> bool:
        return self.take is not self.recorded

    @property
    def enough(self) -> bool:
        """Whether no request fails."""
        return not self.take.outcome.ooms

    @property
    def newly_failed(self) -> int:
        """Requests that succeeded in the recording and fail under the recommended setting."""
        return self.take.outcome.failed

    @property
    def no_longer_failed(self) -> int:
        """Requests that fail under the recorded setting and succeed under the recommended one."""
        return self.recorded.outcome.ooms - self.take.outcome.ooms + self.newly_failed - self.recorded.outcome.failed


def advise(candidates: Sequence[Candidate]) -> Advice:
    """Return the setting with the fewest failed requests, then with the lowest peak; the recorded one if close.

    Counts all failed requests, including those that failed in the recording. If requests fail under every setting and
    the smallest limits were searched, the smallest limit decides. The recorded setting starts like the others.
    """
    packed = [candidate for candidate in candidates if candidate.packed]
    recorded, best = packed[0], min(packed, key=_cost)
    if best.outcome.ooms and any(candidate.smallest_limit is not None for candidate in packed):
        best = min(packed, key=_cost_by_limit)
        needs, needed = best.smallest_limit, recorded.smallest_limit
        better = needs is not None and (needed is None or saves_enough(needs, needed))
        better = better or best.outcome.ooms < recorded.outcome.ooms
    else:
        saves = recorded.outcome.peak_reserved - best.outcome.peak_reserved
        better = best.outcome.ooms < recorded.outcome.ooms
        better = better or (not best.outcome.ooms and saves >= max(1, WORTHWHILE * recorded.outcome.peak_reserved))
    if not better:
        return Advice(recorded, recorded, None if recorded.outcome.ooms else 0)
    failed = best.outcome.ooms or recorded.outcome.ooms
    saves = recorded.outcome.peak_reserved - best.outcome.peak_reserved
    return Advice(best, recorded, None if failed else saves, _risks(best, recorded))


def saves_enough(needs: int, needed: int) -> bool:
    """Return whether a limit is worth a change from the recorded setting, which needs `needed`."""
    return needed - needs >= max(1, WORTHWHILE * needed)


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the fewest failed requests, then by smallest limit if it was searched, then by peak."""
    searched = any(candidate.smallest_limit is not None for candidate in candidates)
    return min(candidates, key=_cost_by_limit if searched else _cost)


def _cost(candidate: Candidate) -> tuple[float, ...]:
    return candidate.outcome.ooms, candidate.outcome.peak_reserved


def _cost_by_limit(candidate: Candidate) -> tuple[float, ...]:
    needs = candidate.smallest_limit
    return math.inf if needs is None else needs, *_cost(candidate)


def _risks(best: Candidate, recorded: Candidate) -> list[str]:
    risks = [text for name, text in RISKS.items() if getattr(best.settings, name) != getattr(recorded.settings, name)]
    return [*risks, ANCHOR_RISK] if best.start.anchor else risks
