"""Rows of the Job dashboard: what troubles the ranks, who they are, and what gpufrag costs them."""

from __future__ import annotations

from .frame import Row
from .memory import MOMENT
from .panels import Face, Query, lines
from .selection import BY_RANK, RANK_NAME, Selection
from .tables import Column, rows


def trouble(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds

    def per_second(metric: str, by: str = BY_RANK) -> str:
        return f"sum {by} (rate({s.series(metric)}[$__rate_interval]))"

    def happened(metric: str, by: str) -> str:
        return f"sum {by} (increase({s.series(metric)}[$__rate_interval]))"

    return Row(
        "What troubles it",
        [
            lines(
                Face(
                    "Steps a second by rank",
                    "Optimizer steps. A rank that falls behind holds up all others; a gap is a restart or a hang.",
                    "none", 8, decimals=2,
                ),
                Query(per_second("gpufrag_steps_total", "by (rank)"), "rank {{rank}}"),
            ),
            lines(
                Face(
                    "Cache flushes a minute by rank",
                    "The driver refused, and the allocator gave back its cache and asked again. Each stalls the rank, "
                    "and with it the job. A steady rate means that it thrashes: memory is short or in pieces.",
                    "short", 8, decimals=1, runbook=config.runbook("GpuAllocatorThrashing"),
                ),
                Query(f"60 * {per_second('gpufrag_allocator_alloc_retries_total')}", RANK_NAME),
                thresholds=[limits.retries_per_minute],
            ),
            lines(
                Face(
                    "Requests to the driver a second by rank",
                    "How often the allocator asks the driver for memory. In a settled job this is 0; where it is not, "
                    "each step pays for allocations that the cache should have served.",
                    "none", 8, decimals=1,
                ),
                Query(per_second("gpufrag_allocator_device_allocs_total"), RANK_NAME),
            ),
            lines(
                Face(
                    "Out-of-memory errors by cause",
                    "What gpufrag found when a request failed: a full device, fragmentation, a neighbour, a limit.",
                    "short", 8, decimals=0, runbook=config.runbook("GpuMemoryOutOfMemory"),
                ),
                Query(happened("gpufrag_oom_causes_total", "by (cause)"), "{{cause}}"),
                bars=True,
            ),
            lines(
                Face(
                    "Size of the last request that failed",
                    "Compare it with the largest request that would succeed: if it is smaller, the failure was a "
                    "passing one.",
                    "bytes", 8, runbook=config.runbook("GpuMemoryOutOfMemory"),
                ),
                Query(f"max {BY_RANK} ({s.series('gpufrag_oom_last_requested_bytes')})", RANK_NAME),
            ),
            lines(
                Face(
                    "Growth by rank",
                    "How many bytes more are in use after each step (of a process that takes none: each second), as a "
                    "steady trend. Anything above 0 ends in an out-of-memory error; tensors kept in a list, or a graph "
                    "that is never freed, look like this.",
                    "bytes", 8, runbook=config.runbook("GpuMemoryLeakSuspected"),
                ),
                Query(
                    f"max {BY_RANK} ({s.series('gpufrag_leak_bytes_per_step')})"
                    f" or max {BY_RANK} ({s.series('gpufrag_leak_bytes_per_second')})",
                    RANK_NAME,
                ),
            ),
        ],
    )  # fmt: skip


def cost(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    stall = f"rate({s.series('gpufrag_stall_seconds_total')}[$__rate_interval])"
    facts = ("rank", "device", "pid", "framework", "framework_version", "backend", "alloc_conf", "uuid", "instance")
    return Row(
        "Who the ranks are, and what gpufrag costs them",
        [
            rows(
                Face(
                    "Processes",
                    "The ranks and what they run. alloc_conf is PYTORCH_CUDA_ALLOC_CONF as it took effect: ranks that "
                    "differ in it behave differently.",
                    "none", 24, 7,
                ),
                *(Column(fact, label=fact) for fact in facts),
                Column("", f"max by ({', '.join(facts)}) ({s.series('gpufrag_process_info')})"),
            ),
            lines(
                Face(
                    "Time taken by the agent",
                    "Share of wall time for which it holds up the worst rank, by what it does: reading statistics "
                    "(stats), taking snapshots (snapshot), waiting for the allocator (wait). What it "
                    "measures beside the rank (measure) holds up nobody.",
                    "percentunit", 8, decimals=3, runbook=config.runbook("GpufragAgentOverhead"),
                ),
                Query(f"max by (cause) ({stall})", "{{cause}}"),
                thresholds=[limits.agent_share],
            ),
            lines(
                Face(
                    "Duration of a snapshot by rank",
                    "For how long the latest one held up the rank. It grows with the number of blocks, and the agent "
                    "takes fewer of them as it does.",
                    "s", 8,
                ),
                Query(f"max {BY_RANK} ({s.series('gpufrag_snapshot_duration_seconds')})", RANK_NAME),
            ),
            lines(
                Face(
                    "Age of the shown snapshots by rank",
                    "Figures of blocks (the ratio, stranded, reclaimable) are as old as this, at the chosen Moment.",
                    "s", 8, runbook=config.runbook("GpufragSampleStale"),
                ),
                Query(f"time() - max {BY_RANK} ({s.series('gpufrag_snapshot_timestamp_seconds', MOMENT)})", RANK_NAME),
            ),
        ],
    )  # fmt: skip
