"""Alerts about the job's memory: one function each, from Config to Alert."""

from __future__ import annotations

from . import recording as rules
from . import texts
from .alert import CRITICAL, INFO, RESTART, WARNING, Alert
from .config import Config, duration, number
from .texts import DEVICE, JOB, MOMENT, RANK, WHERE

RECURRING = "gpufrag_allocator_largest_recurring_bytes"
RETRIES = "gpufrag_allocator_alloc_retries_total"
OOM_TIME = "gpufrag_oom_last_timestamp_seconds"
LEAK, SERVING_LEAK = "gpufrag_leak_bytes_per_step", "gpufrag_leak_bytes_per_second"
_BETWEEN_PEAKS = 'at!="peak"'
"""At the peak the block that recurs is live itself."""


def fragmented(config: Config) -> Alert:
    """The ratio wanders from snapshot to snapshot: the rank that is named is the one whose ratio is told."""
    worst = f"topk(1, max_over_time({config.series(rules.RANK_WORST, JOB)}[{_window(config)}]))"
    numbers = (
        f" on {WHERE}, which last had {texts.figure(config, rules.FREE_TOTAL, MOMENT)} free, but could get no more "
        f"than {texts.figure(config, rules.ALLOCATABLE, MOMENT)} of it in a single request"
    )
    return Alert(
        name="GpuMemoryFragmented",
        severity=WARNING,
        expr=f"max_over_time({config.rule(rules.JOB_ACTIONABLE)}[{_window(config)}])"
        f" > {number(config.thresholds.fragmentation_ratio)}",
        hold=config.timing.hold,
        keep_firing=config.timing.keep_firing,
        labels=RESTART,
        summary="GPU memory is so fragmented that a request for "
        f"1/{number(config.thresholds.fragmentation_ratio)} of what is free would fail.",
        description=f"a ratio of {texts.value('humanize')} within the last {_window(config)}"
        f"{texts.lookup(config, worst, numbers)}. "
        "Restart the job from its next checkpoint; to keep it from coming back, try expandable_segments.",
        annotations={
            f"worst_{label}": texts.lookup(config, worst, f"{{{{ .Labels.{label} }}}}")
            for label in ("rank", "pod", "instance")
        },
    )


def cache_fragmented(config: Config) -> Alert:
    recent = f"max_over_time({config.series(rules.RANK_CACHE)}[{_window(config)}])"
    worst = f"topk(1, max_over_time({config.series(rules.RANK_CACHE, JOB)}[{_window(config)}]))"
    return Alert(
        name="GpuMemoryCacheFragmented",
        severity=INFO,
        expr=f"max by ({config.by_job}) ({recent}) > {number(config.thresholds.cache_ratio)}",
        hold=config.timing.hold,
        summary="The allocator's cache is in small pieces, which by itself is no fault.",
        description=f"{texts.lookup(config, worst, WHERE)}: free bytes in the cache are "
        f"{texts.value('humanize')} times its largest piece. This cries wolf: healthy jobs with varying lengths show a "
        "ratio of 24, for the allocator gives whole free segments back to the driver before it gives up, and the cache "
        "alone does not show that. Look at GpuMemoryFragmented before you do anything.",
    )


def next_request_will_fail(config: Config) -> Alert:
    worst = f"bottomk(1, {_reach(config, JOB)})"
    numbers = (
        f"{WHERE} asks for {texts.figure(config, RECURRING, DEVICE, over='max')} again and again, and at no moment "
        f"of the last {_window(config)} could more than "
        f"{texts.figure(config, rules.ALLOCATABLE, DEVICE, _BETWEEN_PEAKS, over='max')} be had"
    )
    return Alert(
        name="GpuMemoryNextRequestWillFail",
        severity=CRITICAL,
        expr=f"min by ({config.by_job}) ({_reach(config)}) < 1",
        hold=config.timing.hold,
        summary="The next large request of the job will fail for want of a piece that is large enough.",
        description=f"{texts.lookup(config, worst, numbers)}. "
        "Save a checkpoint now; then lower the batch or the sequence length, or restart.",
    )


def _reach(config: Config, *matchers: str) -> str:
    """largest_allocatable at its best moment / largest_recurring."""
    window = _window(config)
    allocatable = config.series(rules.ALLOCATABLE, *matchers, _BETWEEN_PEAKS)
    recurring = config.series(RECURRING, *matchers)
    return f"max without (at) (max_over_time({allocatable}[{window}])) / max_over_time({recurring}[{window}])"


def tight(config: Config) -> Alert:
    recent = f"min_over_time({config.rule(rules.JOB_FREE_SHARE)}[{_window(config)}])"
    lately = rules.free_share(lambda metric: f"min_over_time({config.series(metric, JOB)}[{_window(config)}])")
    worst = f"bottomk(1, {lately})"
    numbers = f"{WHERE} had {texts.figure(config, rules.FREE_TOTAL, MOMENT, over='min')} left"
    return Alert(
        name="GpuMemoryTight",
        severity=INFO,
        expr=f"{recent} < {number(config.thresholds.free_share)}",
        hold=3 * config.timing.hold,
        summary="The job uses nearly all memory that it can get.",
        description=f"{texts.lookup(config, worst, numbers)}, "
        f"{texts.value('humanizePercentage')} of its limit. The device is full, not fragmented: a restart changes "
        "nothing; a smaller batch does, or leave it if the job was sized so.",
    )


def thrashing(config: Config) -> Alert:
    window = duration(config.timing.rate_window)
    worst = f"topk(1, rate({config.series(RETRIES, JOB)}[{window}]))"
    recent = f"rate({config.series(RETRIES)}[{window}])"
    return Alert(
        name="GpuAllocatorThrashing",
        severity=WARNING,
        expr=f"max by ({config.by_job}) ({recent}) * 60 > {number(config.thresholds.retries_per_minute)}",
        hold=2 * config.timing.hold,
        summary="The allocator keeps flushing its cache for want of memory, and each flush stalls the job.",
        description=f"{texts.lookup(config, worst, WHERE)} flushes {texts.value('humanize')} times "
        "a minute. Compare the step time before and after; lower the peak, or raise the limit.",
    )


def out_of_memory(config: Config) -> Alert:
    """By the time of the last one, for no rate shows a process's first; by the counter where no time is told.

    Over a window, for many a process is gone right after its error, and its pod with it.
    """
    event, by_job = duration(config.timing.event), config.by_job
    counted = f"sum by ({by_job}) (increase({config.series('gpufrag_allocator_ooms_total')}[{event}])) > 0"
    timed = f"time() - max_over_time({config.series(OOM_TIME)}[{event}]) < {number(config.timing.event)}"
    latest = f"topk(1, max_over_time({config.series(OOM_TIME, JOB)}[{event}]))"
    asked = f" {WHERE}{texts.figure(config, 'gpufrag_oom_last_requested_bytes', DEVICE, before=' asked for ')}."
    causes = f"sum by (cause) (last_over_time({config.series('gpufrag_oom_causes_total', JOB)}[{event}])) > 0"
    return Alert(
        name="GpuMemoryOutOfMemory",
        severity=WARNING,
        expr=f"{counted} or count by ({by_job}) ({timed})",
        hold=0,
        summary="A request for GPU memory failed.",
        description=f"out of memory within the last {event}.{texts.lookup(config, latest, asked)}"
        f"{texts.each(config, causes, ' Cause {{ .Labels.cause }}: {{ .Value }} so far.')} "
        "A job that caught the error goes on. Was as much free as it asked for? Then it is fragmentation.",
    )


def leak_suspected(config: Config) -> Alert:
    recent = f"max_over_time({config.series(rules.RANK_LEFT)}[{_window(config)}])"
    worst = f"bottomk(1, max_over_time({config.series(rules.RANK_LEFT, JOB)}[{_window(config)}]))"
    by_step = texts.figure(config, LEAK, RANK, only=" > 0", before=" ", after=" more after each step;")
    by_second = texts.figure(config, SERVING_LEAK, RANK, only=" > 0", before=" ", after=" more each second;")
    return Alert(
        name="GpuMemoryLeakSuspected",
        severity=WARNING,
        expr=f"min by ({config.by_job}) ({recent}) < {number(config.thresholds.leak_horizon)}",
        hold=3 * config.timing.hold,
        summary="Allocated memory keeps growing and will fill the device.",
        description=f"{texts.lookup(config, worst, f'{WHERE} keeps{by_step}{by_second}')} at this pace "
        f"the memory is full in {texts.value('humanizeDuration')}. Look for tensors that are kept with their graph (a "
        "loss that is added up, a list of outputs), or for a cache without a bound.",
    )


def foreign_process(config: Config) -> Alert:
    held = "gpufrag_device_other_processes_memory_used_bytes"
    worst = f"topk(1, min_over_time({config.series(held, JOB)}[{_window(config)}]))"
    recent = f"min_over_time({config.series(held)}[{_window(config)}])"
    where = "device {{ .Labels.device }} ({{ .Labels.uuid }}){{ with .Labels.instance }}, {{ . }}{{ end }}"
    return Alert(
        name="GpuMemoryForeignProcess",
        severity=INFO,
        expr=f"max by ({config.by_job}) ({recent}) > {config.thresholds.foreign_bytes}",
        hold=3 * config.timing.hold,
        summary="Processes that are not part of the job hold memory on its device.",
        description=f"{texts.lookup(config, worst, where)}: {texts.value('humanize1024')}B are held "
        "by processes without an agent. nvidia-smi on the host names them; often it is an orphan of an earlier job.",
    )


ALERTS = (
    fragmented,
    cache_fragmented,
    next_request_will_fail,
    tight,
    thrashing,
    out_of_memory,
    leak_suspected,
    foreign_process,
)


def _window(config: Config) -> str:
    return duration(config.timing.window)
