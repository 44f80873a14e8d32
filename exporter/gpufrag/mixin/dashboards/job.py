"""The Job dashboard: the ranks of one job, where their memory is, and what went wrong."""

from __future__ import annotations

from typing import Any

from ...metrics import names
from ...metrics.names import AlertName, Label
from .. import recording
from ..config import Config
from .document import JOB, Row, document
from .panels import Column, Face, Query, bars, history, lines, number, rows, side_by_side, stacked
from .queries import AT, BY_RANK, MEMORY_PARTS, MOMENT, RANK, RANK_NAME, Selection, memory_parts, of_jobs

ABOUT = "The ranks of one job: the largest possible allocation, where the memory is, and what went wrong."
_SIZES = [(None, "#C4162A"), (64 << 20, "#FF780A"), (256 << 20, "#F2CC0C"), (1 << 30, "#96D98D"), (4 << 30, "#37872D")]


def build(config: Config) -> dict[str, Any]:
    s = Selection(config, (*of_jobs(config, single=True), RANK))
    return document(
        JOB,
        ABOUT,
        s,
        [_overview(s), _ranks(s), _memory(s), _steps(s), _faults(s), _defragmentation(s), _processes(s)],
        extra=[AT],
    )


def _overview(s: Selection) -> Row:
    config, trigger = s.config, s.config.thresholds.fragmentation_ratio
    stranded = f"max without ({Label.AT}) (sum {recording.WITHOUT_POOL} ({s.series(names.STRANDED)}))"
    return Row(
        "Overview",
        [
            number(
                Face("Worst rank",
                    "The rank with the highest fragmentation ratio: free memory divided by the largest possible "
                    f"allocation. 1 is perfect, above {trigger:g} is fragmented.",
                    "none", 6, 4, decimals=2, runbook=config.runbook(AlertName.FRAGMENTED)),
                Query(f"topk(1, max {BY_RANK} ({recording.actionable(config, s.series)}))", RANK_NAME),
                [trigger],
                name=True,
            ),
            number(
                Face("Largest possible allocation",
                    "The smallest value of the selected ranks, each at its worst moment. A larger request fails on at "
                    "least one rank.",
                    "bytes", 5, 4),
                Query(f"min({s.series(names.LARGEST_ALLOCATABLE)})"),
            ),
            number(
                Face("Largest recurring request",
                    "The largest request of the last recorded step, over the selected ranks. If it is larger than the "
                    "largest possible allocation (to the left), the next such request may fail.",
                    "bytes", 5, 4, runbook=config.runbook(AlertName.NEXT_REQUEST_WILL_FAIL)),
                Query(f"max({s.series(names.LARGEST_RECURRING)})"),
            ),
            number(
                Face("Stranded memory",
                    "Free memory pinned between blocks in use, over the selected ranks, each at its worst moment.",
                    "bytes", 4, 4),
                Query(f"sum({stranded})"),
            ),
            number(
                Face("Out-of-memory errors",
                    "In the selected time range, including errors that the program caught.",
                    "short", 4, 4, decimals=0, runbook=config.runbook(AlertName.OUT_OF_MEMORY)),
                Query(f"sum(increase({s.series(names.OOMS)}[$__range]))"),
                [1],
            ),
        ],
    )  # fmt: skip


def _ranks(s: Selection) -> Row:
    config, trigger = s.config, s.config.thresholds.fragmentation_ratio
    ratio = Query(f"max {BY_RANK} ({recording.actionable(config, s.series)})", RANK_NAME)
    return Row(
        "Ranks",
        [
            history(
                Face("Largest possible allocation by rank",
                    "One row per rank, at its worst moment; red is small. If all ranks are red together, the job "
                    "outgrows its memory or fragments everywhere.",
                    "bytes", 12, 9),
                Query(f"min {BY_RANK} ({s.series(names.LARGEST_ALLOCATABLE)})", RANK_NAME),
                _SIZES,
            ),
            history(
                Face("Fragmented ranks",
                    "The fragmentation ratio, one row per rank. If one rank alone is red, compare its allocator "
                    "settings (see Processes) and its work with the other ranks. Empty cells: the memory is full.",
                    "none", 12, 9, decimals=1, runbook=config.runbook(AlertName.FRAGMENTED)),
                ratio,
                [(None, "#37872D"), (trigger / 2, "#F2CC0C"), (trigger, "#C4162A")],
            ),
            side_by_side(
                Face("Memory of each rank now", MEMORY_PARTS, "bytes", 24), Label.RANK, memory_parts(s, Label.RANK)
            ),
            lines(
                Face("Fragmentation ratio by rank",
                    "Free memory divided by the largest possible allocation, at the worst moment of each rank. 1 is "
                    f"perfect. Above the line ({trigger:g}) the alert that may restart the job fires after some "
                    "minutes. Ranks with full memory have no curve.",
                    "none", decimals=2, runbook=config.runbook(AlertName.FRAGMENTED)),
                ratio,
                thresholds=[trigger],
            ),
            lines(
                Face("Cache ratio by rank (for tuning only)",
                    "Free bytes in the cache divided by the largest free block. Healthy jobs with varying batch sizes "
                    "reach 10 and more, because torch returns free segments before it fails. Act only if the "
                    "fragmentation ratio is high too.",
                    "none", decimals=1, runbook=config.runbook(AlertName.CACHE_FRAGMENTED)),
                Query(f"max {BY_RANK} ({s.series(recording.RANK_CACHE)})", RANK_NAME),
            ),
        ],
    )  # fmt: skip


def _memory(s: Selection) -> Row:
    peaks = {"limit": names.LIMIT, "reserved peak": names.PEAK_RESERVED, "in-use peak": names.PEAK_ACTIVE}
    limits = s.config.thresholds
    return Row(
        "Memory",
        [
            stacked(Face("Memory of the selected ranks", MEMORY_PARTS, "bytes", 24, 10), memory_parts(s, "")),
            lines(
                Face("Limit and peaks",
                    "Sum over the selected ranks. The gap between the peaks is the cost of fragmentation at the worst "
                    "moment. If the reserved peak equals the limit, the allocator had to flush its cache.",
                    "bytes"),
                *(Query(f"sum({s.series(metric)})", legend) for legend, metric in peaks.items()),
            ),
            lines(
                Face("Unused share by rank",
                    f"Share of the reserved memory that no tensor uses. Below {limits.unused_tune:.0%} is fine, above "
                    f"{limits.unused_act:.0%} is waste.",
                    "percentunit", decimals=0),
                Query(f"max {BY_RANK} ({s.series(recording.RANK_UNUSED)})", RANK_NAME),
                thresholds=[limits.unused_tune, limits.unused_act],
            ),
        ],
    )  # fmt: skip


def _steps(s: Selection) -> Row:
    config = s.config
    return Row(
        "Recorded steps",
        [
            lines(
                Face("Margin by rank",
                    "Memory limit minus the smallest limit under which the last analysed step succeeds, fragmentation "
                    "included. At 0, a slightly larger step runs out of memory.",
                    "bytes", 8, runbook=config.runbook(AlertName.MARGIN_LOW)),
                Query(f"min {BY_RANK} ({s.series(names.STEP_MARGIN)})", RANK_NAME),
            ),
            bars(
                Face("Smallest limit by allocator setting",
                    "The smallest memory limit that the last analysed step of the worst rank needs: as it ran, and "
                    "simulated under other settings of PYTORCH_CUDA_ALLOC_CONF. A setting with a shorter bar saves "
                    "memory. anchor:SIZE is `gpufrag run --anchor SIZE`; gpufrag shows only the best size of each "
                    "rank. Compare \"recorded, empty_cache\" with \"as it ran\". Compare the others with \"recorded, "
                    "packed\", the recorded setting: all of them assume no gaps between older blocks.",
                    "bytes", 8, runbook=config.runbook(AlertName.MARGIN_LOW)),
                Query(f"max({s.series(names.STEP_SMALLEST_LIMIT)})", "as it ran"),
                Query(
                    f"max by ({Label.SETTING}) ({s.series(names.WHATIF_SMALLEST_LIMIT)})", f"{{{{{Label.SETTING}}}}}"
                ),
            ),
            lines(
                Face("Allocations per step by rank",
                    "Allocations in the last analysed step. A sudden rise is a surge of small allocations.",
                    "short", 8, decimals=0),
                Query(f"max {BY_RANK} ({s.series(names.STEP_ALLOCATIONS)})", RANK_NAME),
            ),
        ],
    )  # fmt: skip


def _faults(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    out_of_memory = config.runbook(AlertName.OUT_OF_MEMORY)

    def rate(metric: str, by: str = BY_RANK) -> str:
        return f"sum {by} (rate({s.series(metric)}[$__rate_interval]))"

    return Row(
        "Faults",
        [
            lines(
                Face("Steps per second by rank",
                    "Optimizer steps. A slow rank slows down all others; a gap is a restart or a hang.",
                    "none", 8, decimals=2),
                Query(rate(names.STEPS, f"by ({Label.RANK})"), f"rank {{{{{Label.RANK}}}}}"),
            ),
            lines(
                Face("Cache flushes per minute by rank",
                    "The driver or the memory limit refused memory, so the allocator flushed its cache and retried. "
                    "Each flush stalls the rank and with it the job. A steady rate means that memory is short or "
                    "fragmented.",
                    "short", 8, decimals=1, runbook=config.runbook(AlertName.THRASHING)),
                Query(f"60 * {rate(names.ALLOC_RETRIES)}", RANK_NAME),
                thresholds=[limits.retries_per_minute],
            ),
            lines(
                Face("Driver allocations per second by rank",
                    "Requests that the allocator sends to the driver. In steady state this is 0; otherwise each step "
                    "pays for allocations that the cache should serve.",
                    "none", 8, decimals=1),
                Query(rate(names.DEVICE_ALLOCS), RANK_NAME),
            ),
            lines(
                Face("Out-of-memory errors by cause",
                    "The cause that gpufrag found: capacity, fragmentation, neighbours or limit.",
                    "short", 8, decimals=0, runbook=out_of_memory),
                Query(s.ooms_by_cause, f"{{{{{Label.CAUSE}}}}}"),
                bars=True,
            ),
            lines(
                Face("Size of the last failed request",
                    "If it is smaller than the largest possible allocation now, the failure was temporary.",
                    "bytes", 8, runbook=out_of_memory),
                Query(f"max {BY_RANK} ({s.series(names.OOM_LAST_REQUESTED)})", RANK_NAME),
            ),
            lines(
                Face("Leak by rank",
                    "Estimated growth of allocated memory per step (per second for a process without steps). Above 0 "
                    "the job runs out of memory eventually. Typical causes: tensors kept in a list, or a graph that is "
                    "never freed.",
                    "bytes", 8, runbook=config.runbook(AlertName.LEAK_SUSPECTED)),
                Query(
                    f"max {BY_RANK} ({s.series(names.LEAK_PER_STEP)})"
                    f" or max {BY_RANK} ({s.series(names.LEAK_PER_SECOND)})",
                    RANK_NAME,
                ),
            ),
        ],
    )  # fmt: skip


def _defragmentation(s: Selection) -> Row:
    largest = {"before": names.DEFRAGMENT_LARGEST_BEFORE, "after": names.DEFRAGMENT_LARGEST_AFTER}
    return Row(
        "Defragmentation",
        [
            lines(
                Face("Largest possible allocation before and after",
                    "The smallest value of the selected ranks, each at its last defragmentation. If both curves are "
                    "equal, defragmentation does not help this job.",
                    "bytes", 8),
                *(Query(f"min({s.series(metric)})", legend) for legend, metric in largest.items()),
            ),
            lines(
                Face("Moved bytes by rank",
                    "Bytes of live tensors that defragmentation moved. The rank pauses during a move.",
                    "bytes", 8),
                Query(f"sum {BY_RANK} (increase({s.series(names.DEFRAGMENT_MOVED)}[$__rate_interval]))", RANK_NAME),
                bars=True,
            ),
            lines(
                Face("Refused defragmentations by reason",
                    "Defragmentations that moved nothing, for example because a CUDA graph was alive.",
                    "short", 8, decimals=0),
                Query(
                    f"sum by ({Label.REASON}) (increase({s.series(names.DEFRAGMENT_REFUSED)}[$__rate_interval]))",
                    f"{{{{{Label.REASON}}}}}",
                ),
                bars=True,
            ),
        ],
    )  # fmt: skip


def _processes(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    stall = f"rate({s.series(names.STALL)}[$__rate_interval])"
    facts = (
        Label.RANK, Label.DEVICE, Label.PID, Label.FRAMEWORK, Label.FRAMEWORK_VERSION, Label.BACKEND, Label.ALLOC_CONF,
        Label.UUID, Label.INSTANCE,
    )  # fmt: skip
    return Row(
        "Processes and agent overhead",
        [
            rows(
                Face("Processes",
                    "alloc_conf is the PYTORCH_CUDA_ALLOC_CONF in effect. Ranks with different settings fragment "
                    "differently.",
                    "none", 24, 7),
                *(Column(fact, label=fact) for fact in facts),
                Column("", f"max by ({', '.join(facts)}) ({s.series(names.PROCESS_INFO)})"),
            ),
            lines(
                Face("Agent overhead by cause",
                    "Share of time for which the agent pauses the worst rank: reading statistics (stats), taking "
                    "snapshots (snapshot), waiting for the allocator (wait). measure is CPU time in a background "
                    "thread, which pauses nothing.",
                    "percentunit", 8, decimals=3, runbook=config.runbook(AlertName.AGENT_OVERHEAD)),
                Query(f"max by ({Label.CAUSE}) ({stall})", f"{{{{{Label.CAUSE}}}}}"),
                thresholds=[limits.agent_share],
            ),
            lines(
                Face("Snapshot duration by rank",
                    "How long the latest snapshot paused the rank. It grows with the number of blocks; the agent then "
                    "takes fewer snapshots.",
                    "s", 8),
                Query(f"max {BY_RANK} ({s.series(names.SNAPSHOT_DURATION)})", RANK_NAME),
            ),
            lines(
                Face("Snapshot age by rank",
                    "Age of the snapshots that the variable Moment selects. The ratio and the stranded and reclaimable "
                    "memory are from these snapshots.",
                    "s", 8, runbook=config.runbook(AlertName.SAMPLE_STALE)),
                Query(f"time() - max {BY_RANK} ({s.series(names.SNAPSHOT_TIMESTAMP, MOMENT)})", RANK_NAME),
            ),
        ],
    )  # fmt: skip
