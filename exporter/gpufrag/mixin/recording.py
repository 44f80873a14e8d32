"""The recording rules: the ratios that metrics.TABLE leaves to its readers, per rank and per job.

`rank:` rules keep all labels of a rank (rank, device, `at` where their parts have it, those of the scrape). `job:`
rules have Config.job_labels and nothing else: they suffice for federation and remote write. A job is shown by its
worst rank (`max_…`) or by a quotient of sums, never by a mean of ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .config import Config, duration, number

FREE_TOTAL = "gpufrag_allocator_free_total_bytes"
ALLOCATABLE = "gpufrag_allocator_largest_allocatable_bytes"
LIMIT = "gpufrag_allocator_limit_bytes"
ALLOCATED, RESERVED = "gpufrag_allocator_allocated_bytes", "gpufrag_allocator_reserved_bytes"
PEAK_ACTIVE, PEAK_RESERVED = "gpufrag_allocator_peak_active_bytes", "gpufrag_allocator_peak_reserved_bytes"

RANK_FRAGMENTATION = "rank:gpufrag_fragmentation:ratio"
RANK_WORST = "rank:gpufrag_worst_fragmentation:ratio"
RANK_CACHE = "rank:gpufrag_cache_fragmentation:ratio"
RANK_UNUSED = "rank:gpufrag_unused:ratio"
RANK_PEAK = "rank:gpufrag_peak_fragmentation:ratio"
RANK_LEFT = "rank:gpufrag_memory_left:seconds"

JOB_FRAGMENTATION = "job:gpufrag_fragmentation:max_ratio"
JOB_ACTIONABLE = "job:gpufrag_actionable_fragmentation:max_ratio"
JOB_FREE_SHARE = "job:gpufrag_free_share:min_ratio"
JOB_CACHE = "job:gpufrag_cache_fragmentation:max_ratio"
JOB_UNUSED_WORST = "job:gpufrag_unused:max_ratio"
JOB_PEAK_WORST = "job:gpufrag_peak_fragmentation:max_ratio"
JOB_UNUSED = "job:gpufrag_unused:ratio"
JOB_PEAK = "job:gpufrag_peak_fragmentation:ratio"
JOB_ALLOCATED = "job:gpufrag_allocator_allocated_bytes:sum"
JOB_RESERVED = "job:gpufrag_allocator_reserved_bytes:sum"
JOB_STRANDED = "job:gpufrag_allocator_stranded_bytes:sum"
JOB_RANKS = "job:gpufrag_ranks_alive:count"

HELD_UP = 'cause!="measure"'
"""Of the agent's costs: what holds up the process. What it measures beside the process holds up nobody."""

URGENT = frozenset(
    {
        RANK_FRAGMENTATION,
        RANK_WORST,
        RANK_LEFT,
        JOB_FRAGMENTATION,
        JOB_ACTIONABLE,
        JOB_FREE_SHARE,
        JOB_RANKS,
    }
)
"""What alerts read: a group of its own, so that the trigger does not wait for the figures that people read."""


class Recording(NamedTuple):
    """One rule, and what it means to a reader."""

    record: str
    expr: str
    meaning: str


def rank_rules(config: Config) -> Iterator[Recording]:
    """In the order in which they build on each other."""
    series = config.series
    yield Recording(
        RANK_FRAGMENTATION,
        f"{series(FREE_TOTAL)} / {series(ALLOCATABLE)}",
        "free_total / largest_allocatable: 1 is perfect, above 4 is trouble",
    )
    yield Recording(
        RANK_WORST,
        _worst(config),
        "the ratio of the one rank and moment of each job where it is highest, of those where enough is free",
    )
    yield Recording(
        RANK_LEFT,
        seconds_left(config),
        "how long until a leak has filled the memory, at its pace; no series where nothing leaks",
    )
    between_steps = 'at!="peak"'
    yield Recording(
        RANK_CACHE,
        f"sum without (pool) ({series('gpufrag_allocator_free_cached_bytes', between_steps)})"
        f" / max without (pool) ({series('gpufrag_allocator_largest_free_block_bytes', between_steps)})",
        "the same rule from the cache alone, often alarming in a healthy job; at the peak the cache is in use",
    )
    yield Recording(
        RANK_UNUSED,
        f"1 - sum without (pool) ({series(ALLOCATED)}) / sum without (pool) ({series(RESERVED)})",
        "share of the reserved memory that no tensor uses",
    )
    yield Recording(
        RANK_PEAK,
        f"1 - {series(PEAK_ACTIVE)} / {series(PEAK_RESERVED)}",
        "1 - peak active / peak reserved, the figure that papers report",
    )


def actionable(config: Config, series: Callable[[str], str]) -> str:
    """The fragmentation ratio where enough is free for it to matter: no series on a full device.

    It reads no recorded ratio, which may be of another moment than the share when somebody asks.
    """
    return f"({_enough(config, series)}) / {series(ALLOCATABLE)}"


def _worst(config: Config) -> str:
    """What `actionable` says, of each job's worst rank: what is written costs a Prometheus more than what is read.

    In its group, directly after the ratios, the recorded ones are of this very moment, and cheaper than a division.
    """
    ratio = f"{config.series(RANK_FRAGMENTATION)} and {_enough(config, config.series)}"
    return f"topk by ({config.by_job}) (1, {ratio})"


def _enough(config: Config, series: Callable[[str], str]) -> str:
    least = f"{number(config.thresholds.free_share)} * {series(LIMIT)}"
    return f"{series(FREE_TOTAL)} > ignoring (at) group_left () ({least})"


def free_share(series: Callable[[str], str]) -> str:
    """free_total as a share of the limit, by rank and moment."""
    return f"{series(FREE_TOTAL)} / ignoring (at) group_left () {series(LIMIT)}"


def seconds_left(config: Config) -> str:
    """A process that serves takes no steps: its growth is told by the second, as is that of a second framework.

    Few ranks leak, so that all else is done for them alone: for every allocator on the device, as one that leaks takes
    from all, and may not tell what is free itself.
    """
    by_step, by_second = (f"{config.series(f'gpufrag_leak_bytes_per_{unit}')} > 0" for unit in ("step", "second"))
    leaking = f"{config.series(FREE_TOTAL)} and ignoring (at, framework) ({by_step} or {by_second})"
    inside = "without (device, framework)"
    steps = f"rate({config.series('gpufrag_steps_total')}[{duration(config.timing.rate_window)}])"
    told_apart = f'label_replace(max {inside} ({by_second}), "framework", "any", "", "")'
    a_second = f"max without (framework) (max {inside} ({by_step}) * {steps} or {told_apart})"
    return f"min without (at, device, framework) ({leaking}) / ({a_second})"


def job_rules(config: Config) -> Iterator[Recording]:
    """They build on rank_rules: one group, evaluated in this order, sees one moment."""
    yield from _worst_rank(config)
    yield from _sums(config)
    up = config.series("gpufrag_up", 'rank!=""')
    alive = f"max_over_time({up}[{duration(config.timing.window)}])"
    yield Recording(
        JOB_RANKS,
        f"count by ({config.by_job}) (max by ({config.by_job}, rank) ({alive}) == 1)",
        "ranks with a living agent, each counted once however often its pod was replaced",
    )


def _worst_rank(config: Config) -> Iterator[Recording]:
    yield Recording(
        JOB_ACTIONABLE,
        f"max by ({config.by_job}) ({config.series(RANK_WORST)})",
        "fragmentation ratio of the job's worst rank, where enough is free for it to matter",
    )
    yield Recording(
        JOB_FREE_SHARE,
        f"min by ({config.by_job}) ({free_share(config.series)})",
        "free_total as a share of the limit, of the job's fullest rank",
    )
    for record, rank_rule, figure in (
        (JOB_FRAGMENTATION, RANK_FRAGMENTATION, "fragmentation ratio"),
        (JOB_CACHE, RANK_CACHE, "cache ratio"),
        (JOB_UNUSED_WORST, RANK_UNUSED, "unused share"),
        (JOB_PEAK_WORST, RANK_PEAK, "peak fragmentation"),
    ):
        yield Recording(
            record, f"max by ({config.by_job}) ({config.series(rank_rule)})", f"{figure} of the job's worst rank"
        )


def _sums(config: Config) -> Iterator[Recording]:
    by_job, series = config.by_job, config.series
    for record, metric in ((JOB_ALLOCATED, ALLOCATED), (JOB_RESERVED, RESERVED)):
        yield Recording(record, f"sum by ({by_job}) ({series(metric)})", "over all ranks, devices and pools")
    stranded = f"max without (at) (sum without (pool) ({series('gpufrag_allocator_stranded_bytes')}))"
    yield Recording(
        JOB_STRANDED,
        f"sum by ({by_job}) ({stranded})",
        "over all ranks, each at its worst moment: what fragmentation costs",
    )
    allocated = f"{config.rule(JOB_ALLOCATED)} - {_half_told(config, ALLOCATED, RESERVED)}"
    active = f"sum by ({by_job}) ({series(PEAK_ACTIVE)}) - {_half_told(config, PEAK_ACTIVE, PEAK_RESERVED)}"
    for record, part, whole in (
        (JOB_UNUSED, allocated, config.rule(JOB_RESERVED)),
        (JOB_PEAK, active, f"sum by ({by_job}) ({series(PEAK_RESERVED)})"),
    ):
        yield Recording(record, f"1 - ({part}) / {whole}", "of all ranks together: sums, then their quotient")


def _half_told(config: Config, part: str, whole: str) -> str:
    """Of each job's sum of `part`, what belongs in no quotient: there is no `whole` to it. 0 where all is told.

    TensorFlow tells what it has in use, and not what it holds. Only second frameworks are looked at, for they are few.
    """
    told, entire = (config.series(metric, 'framework!=""') for metric in (part, whole))
    return f"(sum by ({config.by_job}) ({told} unless {entire}) or 0 * {config.rule(JOB_RESERVED)})"
