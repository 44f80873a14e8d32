"""The Job dashboard: the ranks of one job side by side, where their memory is, and what troubles them."""

from __future__ import annotations

from typing import Any

from .. import recording
from ..config import Config
from . import job_faults
from .frame import JOB, Row, document
from .memory import MEANING, parts
from .panels import Face, Query, history, lines, number, side_by_side, stacked
from .selection import AT, BY_RANK, RANK, RANK_NAME, Selection, of_jobs

ABOUT = "One job, rank by rank: how large a request would still succeed, where the memory is, and what goes wrong."
_SIZES = [(None, "#C4162A"), (64 << 20, "#FF780A"), (256 << 20, "#F2CC0C"), (1 << 30, "#96D98D"), (4 << 30, "#37872D")]
"""By doubling, not by equal steps: a rank with 2 GiB left is nearer to one with 1 than to one with 80."""


def build(config: Config) -> dict[str, Any]:
    s = Selection(config, (*of_jobs(config, single=True), RANK))
    return document(
        JOB, ABOUT, s, [_now(s), _ranks(s), _memory(s), job_faults.trouble(s), job_faults.cost(s)], extra=[AT]
    )


def _now(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    allocatable = s.series("gpufrag_allocator_largest_allocatable_bytes")
    trigger = limits.fragmentation_ratio
    return Row(
        "Now",
        [
            number(
                Face(
                    "Worst rank",
                    "The rank with the highest fragmentation ratio: what it could have, divided by the largest single "
                    f"request that would succeed. 1 is perfect, above {trigger:g} is trouble.",
                    "none", 6, 4, decimals=2, runbook=config.runbook("GpuMemoryFragmented"),
                ),
                Query(f"topk(1, max {BY_RANK} ({recording.actionable(config, s.series)}))", RANK_NAME),
                [trigger],
                name=True,
            ),
            number(
                Face(
                    "Largest request that every rank can serve",
                    "At the worst moment of the worst rank. A larger tensor ends the job with an out-of-memory error.",
                    "bytes", 5, 4,
                ),
                Query(f"min({allocatable})"),
            ),
            number(
                Face(
                    "Largest request that comes again",
                    "The largest block that the job was seen to free and ask for again within the last hour. If the "
                    "figure to the left is smaller, the next such request may fail.",
                    "bytes", 5, 4, runbook=config.runbook("GpuMemoryNextRequestWillFail"),
                ),
                Query(f"max({s.series('gpufrag_allocator_largest_recurring_bytes')})"),
            ),
            number(
                Face(
                    "Stranded memory",
                    "Free, but pinned between blocks in use: over the ranks shown, each at its worst moment.",
                    "bytes", 4, 4,
                ),
                Query(f"sum(max without (at) (sum without (pool) ({s.series('gpufrag_allocator_stranded_bytes')})))"),
            ),
            number(
                Face(
                    "Out-of-memory errors",
                    "In the time shown, those that the program caught and survived included.",
                    "short", 4, 4, decimals=0, runbook=config.runbook("GpuMemoryOutOfMemory"),
                ),
                Query(f"sum(increase({s.series('gpufrag_allocator_ooms_total')}[$__range]))"),
                [1],
            ),
        ],
    )  # fmt: skip


def _ranks(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    allocatable = s.series("gpufrag_allocator_largest_allocatable_bytes")
    trigger = limits.fragmentation_ratio
    return Row(
        "The ranks side by side",
        [
            history(
                Face(
                    "Largest request that would succeed, by rank",
                    "One line a rank, at its worst moment: the redder, the smaller the largest tensor that it can "
                    "still get. All ranks red together: the job outgrows its memory, or fragments everywhere.",
                    "bytes", 12, 9,
                ),
                Query(f"min {BY_RANK} ({allocatable})", RANK_NAME),
                _SIZES,
            ),
            history(
                Face(
                    "Fragmented ranks",
                    "The fragmentation ratio of the curves below, one line a rank. A rank that is red alone differs "
                    "from its peers: compare its settings under Processes, and its part of the work. Empty cells: the "
                    "memory is simply full.",
                    "none", 12, 9, decimals=1, runbook=config.runbook("GpuMemoryFragmented"),
                ),
                Query(f"max {BY_RANK} ({recording.actionable(config, s.series)})", RANK_NAME),
                [(None, "#37872D"), (trigger / 2, "#F2CC0C"), (trigger, "#C4162A")],
            ),
            side_by_side(Face("Where each rank's memory is now", MEANING, "bytes", 24), "rank", parts(s, "rank")),
            lines(
                Face(
                    "Fragmentation ratio by rank",
                    "What a rank could have (free blocks and what the driver still gives), divided by the largest "
                    f"request that would succeed, at its worst moment. 1 is perfect. Above the line ({trigger:g}) for "
                    "some minutes, the alert fires that may restart the job. No curve where the memory is simply full: "
                    "then it is short, not in pieces.",
                    "none", decimals=2, runbook=config.runbook("GpuMemoryFragmented"),
                ),
                Query(f"max {BY_RANK} ({recording.actionable(config, s.series)})", RANK_NAME),
                thresholds=[trigger],
            ),
            lines(
                Face(
                    "Cache ratio by rank (no reason to act)",
                    "The same from the allocator's cache alone: its free bytes, divided by its largest free block. "
                    "Healthy trainings with batches of varying length live at 10 and more, because torch gives the "
                    "cache back before it fails. Worth a look only where the ratio to the left is high too.",
                    "none", decimals=1, runbook=config.runbook("GpuMemoryCacheFragmented"),
                ),
                Query(f"max {BY_RANK} ({s.series(recording.RANK_CACHE)})", RANK_NAME),
            ),
        ],
    )  # fmt: skip


def _memory(s: Selection) -> Row:
    peaks = {
        "limit": "gpufrag_allocator_limit_bytes",
        "reserved peak": "gpufrag_allocator_peak_reserved_bytes",
        "in-use peak": "gpufrag_allocator_peak_active_bytes",
    }
    limits = s.config.thresholds
    return Row(
        "Where the memory is",
        [
            stacked(Face("Memory of the ranks shown", MEANING, "bytes", 24, 10), parts(s, "")),
            lines(
                Face(
                    "What is needed, what is held, what there is",
                    "Summed over the ranks shown. The gap between the two peaks is what fragmentation has cost at the "
                    "worst moment; a reserved peak at the limit means that the cache has been flushed to make room.",
                    "bytes",
                ),
                *(Query(f"sum({s.series(metric)})", legend) for legend, metric in peaks.items()),
            ),
            lines(
                Face(
                    "Unused share by rank",
                    "Share of what the rank has taken from the driver in which no tensor is. Below "
                    f"{limits.unused_tune:g} is fine, above {limits.unused_act:g} is waste.",
                    "percentunit", decimals=0,
                ),
                Query(f"max {BY_RANK} ({s.series(recording.RANK_UNUSED)})", RANK_NAME),
                thresholds=[limits.unused_tune, limits.unused_act],
            ),
        ],
    )  # fmt: skip
