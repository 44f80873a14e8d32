"""`gpufrag whatif`: outcomes side by side, the setting to take, and what to know before taking it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..model.settings import Settings
from ..model.whatif import Outcome, Run
from ..units import format_bytes
from .style import Emphasis

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
    """One setting and what it came to; `smallest_limit` is None where it was not asked for or not found."""

    conf: str
    settings: Settings
    outcome: Outcome
    recorded: bool = False
    smallest_limit: int | None = None

    @property
    def name(self) -> str:
        return (self.conf or "(torch's defaults)") + (", as recorded" if self.recorded else "")


@dataclass(frozen=True)
class Advice:
    """The setting to take; `change` is false where the recorded one should stay."""

    take: Candidate
    change: bool
    saves: int
    """Bytes of peak reserved memory, against the recorded setting; below 0 it costs them."""
    risks: list[str] = field(default_factory=list)


def advise(candidates: Sequence[Candidate]) -> Advice:
    """The fewest failed requests first, then the lowest peak; a change must be worth it. The first is the recorded."""
    recorded = candidates[0]
    best = min(candidates, key=lambda c: (c.outcome.failed, c.outcome.peak_reserved))
    saves = recorded.outcome.peak_reserved - best.outcome.peak_reserved
    rescued = best.outcome.failed < recorded.outcome.failed
    if not rescued and saves < WORTHWHILE * recorded.outcome.peak_reserved:
        return Advice(recorded, False, 0)
    return Advice(best, True, saves, _risks(best.settings, recorded.settings))


def _risks(settings: Settings, before: Settings) -> list[str]:
    return [text for name, text in RISKS.items() if getattr(settings, name) != getattr(before, name)]


def notes(run: Run, candidates: Sequence[Candidate], limit: int | None) -> Iterator[str]:
    """What the trace leaves open, where it could change the answer."""
    recorded = candidates[0].outcome
    if run.older:
        yield (
            f"{run.older:,} blocks are older than the trace (or its ring buffer lost their beginning): other "
            "settings start with them packed, which favours these; record from the start of the process to be sure"
        )
    if run.program.strangers:
        yield f"{run.program.strangers:,} frees in the trace are of blocks that it does not explain; they are left out"
    if limit == run.recorded_limit and not recorded.same_end:
        yield (
            "the replay under the recorded setting does not end exactly as the recorded heap does; differences of a "
            "few MiB come from addresses that libraries took from the driver, larger ones from settings that the "
            "snapshot does not hold (give --recorded-limit if the process had a limit)"
        )
    if run.driver.free is None:
        yield "other processes' use of the device is not in a trace: add --driver-free and --driver-size to count it in"
    if limit is None:
        yield "without --limit no request fails here, and garbage_collection_threshold does nothing"
    if any(operation.stream != run.program.operations[0].stream for operation in run.program.operations):
        yield (
            "several streams: when a block that another stream used becomes free depends on the GPU's timing; it is "
            "taken as recorded"
        )


def as_record(run: Run, candidates: Sequence[Candidate], advice: Advice, limit: int | None) -> dict[str, Any]:
    """The form of --json: bytes, null for what cannot be told."""
    return {
        "limit": limit,
        "operations": len(run.program.operations),
        "older_blocks": run.older,
        "trace_is_complete": run.complete,
        "candidates": [_candidate_record(candidate) for candidate in candidates],
        "advice": {
            "conf": advice.take.conf,
            "change": advice.change,
            "saves_bytes": advice.saves,
            "risks": advice.risks,
        },
        "notes": list(notes(run, candidates, limit)),
    }


def _candidate_record(candidate: Candidate) -> dict[str, Any]:
    return {
        "conf": candidate.conf,
        "recorded": candidate.recorded,
        **asdict(candidate.outcome),
        "peak_fragmentation": candidate.outcome.peak_fragmentation,
        "smallest_limit": candidate.smallest_limit,
    }


def as_text(run: Run, candidates: Sequence[Candidate], advice: Advice, limit: int | None, bold: Emphasis = str) -> str:
    rows = [_head(candidates), *(_cells(candidate, candidates) for candidate in candidates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    lines[0] = bold(lines[0])
    lines += ["", *_advice_lines(advice, bold), ""]
    lines += [f"note: {note}" for note in notes(run, candidates, limit)]
    return "\n".join(lines).rstrip()


def _head(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    head: tuple[str, ...] = ("setting", "peak reserved", "peak active", "fragm.", "stranded", "OOMs", "new OOMs")
    head += ("retries", "device allocs", "least allocatable")
    return (*head, "smallest limit") if _limits(candidates) else head


def _limits(candidates: Sequence[Candidate]) -> bool:
    return any(candidate.smallest_limit is not None for candidate in candidates)


def _cells(candidate: Candidate, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    outcome = candidate.outcome
    cells = (
        candidate.name,
        format_bytes(outcome.peak_reserved),
        format_bytes(outcome.peak_active),
        f"{outcome.peak_fragmentation:.1%}",
        format_bytes(outcome.stranded_at_peak),
        str(outcome.ooms),
        str(outcome.failed),
        str(outcome.alloc_retries),
        str(outcome.device_allocs),
        _size(outcome.worst_largest_allocatable),
    )
    return (*cells, _size(candidate.smallest_limit)) if _limits(candidates) else cells


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = (cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths)))
    return "  ".join([name, *figures]).rstrip()


def _advice_lines(advice: Advice, bold: Emphasis) -> Iterator[str]:
    if not advice.change:
        yield bold("keep the recorded setting: none of the others saves 2 % of the peak, or a failed request")
        return
    yield bold(f"export PYTORCH_CUDA_ALLOC_CONF={advice.take.conf}")
    what = f"{'saves' if advice.saves >= 0 else 'costs'} {format_bytes(abs(advice.saves))} of peak reserved memory"
    yield f"  {what}; requests that newly run out of memory under it: {advice.take.outcome.failed}"
    yield from (f"  risk: {risk}" for risk in advice.risks)
