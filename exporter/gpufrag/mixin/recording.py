"""The recording rules: ratios by rank and by job.

`rank:` rules keep all labels of a rank (rank, device, `at` where present, and those of the scrape). `job:` rules have
only Config.job_labels, which is enough for federation and remote write. A job is represented by its worst rank
(`max_...`) or by a quotient of sums, never by a mean of ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..metrics import names
from ..metrics.names import Label
from .config import Config, duration, number

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

BETWEEN_PEAKS = f'{Label.AT}!="peak"'
PAUSES = f'{Label.CAUSE}!="measure"'
"""The agent's costs that pause the process; `measure` runs in a background thread."""
WITHOUT_POOL = f"without ({Label.POOL})"

URGENT = frozenset(
    {RANK_FRAGMENTATION, RANK_WORST, RANK_LEFT, JOB_FRAGMENTATION, JOB_ACTIONABLE, JOB_FREE_SHARE, JOB_RANKS}
)
"""Rules that alerts read. They have their own group, so that the trigger does not wait for the other rules."""


class Recording(NamedTuple):
    record: str
    expr: str
    meaning: str


def rank_rules(config: Config) -> Iterator[Recording]:
    """Yield the rules in evaluation order: later ones read earlier ones."""
    series = config.series
    yield Recording(
        RANK_FRAGMENTATION,
        f"{series(names.FREE_TOTAL)} / {series(names.LARGEST_ALLOCATABLE)}",
        "fragmentation ratio: free_total / largest_allocatable; 1 is perfect, above 4 is fragmented",
    )
    # Recorded ratios of the same group and evaluation are cheaper than a division, and one series per job is stored.
    yield Recording(
        RANK_WORST,
        f"topk by ({config.by_job}) (1, {series(RANK_FRAGMENTATION)} and {_enough_free(config, series)})",
        "fragmentation ratio of the worst rank and moment of each job, among those with enough free memory",
    )
    yield Recording(
        RANK_LEFT,
        seconds_left(config),
        "seconds until a leak fills the memory at the current rate; absent if nothing leaks",
    )
    yield Recording(
        RANK_CACHE,
        f"sum {WITHOUT_POOL} ({series(names.FREE_CACHED, BETWEEN_PEAKS)})"
        f" / max {WITHOUT_POOL} ({series(names.LARGEST_FREE_BLOCK, BETWEEN_PEAKS)})",
        "cache ratio: free_cached / largest_free_block, outside of peaks; often high in healthy jobs",
    )
    yield Recording(
        RANK_UNUSED,
        f"1 - sum {WITHOUT_POOL} ({series(names.ALLOCATED)}) / sum {WITHOUT_POOL} ({series(names.RESERVED)})",
        "unused share: share of the reserved memory that no tensor uses",
    )
    yield Recording(
        RANK_PEAK,
        f"1 - {series(names.PEAK_ACTIVE)} / {series(names.PEAK_RESERVED)}",
        "peak fragmentation: 1 - peak active / peak reserved",
    )


def actionable(config: Config, series: Callable[[str], str]) -> str:
    """Return PromQL for the fragmentation ratio of ranks with enough free memory; no series for a full device.

    It reads no recorded ratio, which can be of another evaluation than the free share.
    """
    return f"({_enough_free(config, series)}) / {series(names.LARGEST_ALLOCATABLE)}"


def _enough_free(config: Config, series: Callable[[str], str]) -> str:
    least = f"{number(config.thresholds.free_share)} * {series(names.LIMIT)}"
    return f"{series(names.FREE_TOTAL)} > ignoring ({Label.AT}) group_left () ({least})"


def free_share(series: Callable[[str], str]) -> str:
    """Return PromQL for free_total as a share of the limit, by rank and moment."""
    return f"{series(names.FREE_TOTAL)} / ignoring ({Label.AT}) group_left () {series(names.LIMIT)}"


def seconds_left(config: Config) -> str:
    """Return PromQL for the seconds until a leak fills the memory.

    Growth is by step, or by second for a server or a second framework. Every allocator on the device is considered,
    because a leak in one takes memory from all. The leaking ranks are selected first: they are few.
    """
    by_step, by_second = (f"{config.series(name)} > 0" for name in (names.LEAK_PER_STEP, names.LEAK_PER_SECOND))
    leaking = (
        f"{config.series(names.FREE_TOTAL)} and ignoring ({Label.AT}, {Label.FRAMEWORK}) ({by_step} or {by_second})"
    )
    inside = f"without ({Label.DEVICE}, {Label.FRAMEWORK})"
    steps = f"rate({config.series(names.STEPS)}[{duration(config.timing.rate_window)}])"
    # `or` drops the right side where labels are equal, so growth per second needs a distinct label.
    labelled = f'label_replace(max {inside} ({by_second}), "{Label.FRAMEWORK}", "any", "", "")'
    a_second = f"max without ({Label.FRAMEWORK}) (max {inside} ({by_step}) * {steps} or {labelled})"
    return f"min without ({Label.AT}, {Label.DEVICE}, {Label.FRAMEWORK}) ({leaking}) / ({a_second})"


def job_rules(config: Config) -> Iterator[Recording]:
    """Yield the rules by job, which read those of rank_rules in the same group."""
    by_job, series = config.by_job, config.series
    yield Recording(
        JOB_ACTIONABLE,
        f"max by ({by_job}) ({series(RANK_WORST)})",
        "fragmentation ratio of the job's worst rank, among ranks with enough free memory",
    )
    yield Recording(
        JOB_FREE_SHARE,
        f"min by ({by_job}) ({free_share(series)})",
        "free_total as a share of the limit, of the job's fullest rank",
    )
    for record, rank_rule, figure in (
        (JOB_FRAGMENTATION, RANK_FRAGMENTATION, "fragmentation ratio"),
        (JOB_CACHE, RANK_CACHE, "cache ratio"),
        (JOB_UNUSED_WORST, RANK_UNUSED, "unused share"),
        (JOB_PEAK_WORST, RANK_PEAK, "peak fragmentation"),
    ):
        yield Recording(record, f"max by ({by_job}) ({series(rank_rule)})", f"{figure} of the job's worst rank")
    for record, metric in ((JOB_ALLOCATED, names.ALLOCATED), (JOB_RESERVED, names.RESERVED)):
        yield Recording(record, f"sum by ({by_job}) ({series(metric)})", "sum over all ranks, devices and pools")
    stranded = f"max without ({Label.AT}) (sum {WITHOUT_POOL} ({series(names.STRANDED)}))"
    yield Recording(
        JOB_STRANDED,
        f"sum by ({by_job}) ({stranded})",
        "memory lost to fragmentation: sum over all ranks, each at its worst moment",
    )
    allocated = f"{config.rule(JOB_ALLOCATED)} - {_without_whole(config, names.ALLOCATED, names.RESERVED)}"
    active = f"sum by ({by_job}) ({series(names.PEAK_ACTIVE)})"
    active += f" - {_without_whole(config, names.PEAK_ACTIVE, names.PEAK_RESERVED)}"
    for record, part, whole in (
        (JOB_UNUSED, allocated, config.rule(JOB_RESERVED)),
        (JOB_PEAK, active, f"sum by ({by_job}) ({series(names.PEAK_RESERVED)})"),
    ):
        yield Recording(record, f"1 - ({part}) / {whole}", "over all ranks: quotient of sums")
    with_rank = f'{Label.RANK}!=""'
    alive = f"max_over_time({series(names.UP, with_rank)}[{duration(config.timing.window)}])"
    yield Recording(
        JOB_RANKS,
        f"count by ({by_job}) (max by ({by_job}, {Label.RANK}) ({alive}) == 1)",
        "ranks with a living agent; a rank counts once, even if its pod was replaced",
    )


def _without_whole(config: Config, part: str, whole: str) -> str:
    """PromQL for each job's sum of `part` that has no matching `whole`, or 0.

    TensorFlow reports what it uses but not what it reserves. Only second frameworks are searched: they are few.
    """
    parts, wholes = (config.series(metric, f'{Label.FRAMEWORK}!=""') for metric in (part, whole))
    return f"(sum by ({config.by_job}) ({parts} unless {wholes}) or 0 * {config.rule(JOB_RESERVED)})"
