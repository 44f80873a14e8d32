"""The alerts: one function for each, from Config to Alert. Every alert is about one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..metrics import names
from ..metrics.names import AlertName, Label
from ..model.needs import RECORDED_EMPTIED, RECORDED_PACKED
from ..model.trace.comparison import WORTHWHILE
from . import recording, templates
from .config import Config, duration, number
from .recording import BETWEEN_PEAKS
from .templates import DEVICE, JOB, MOMENT, RANK, WHERE, figure, value

INFO, WARNING, CRITICAL = "info", "warning", "critical"
RESTART: Mapping[str, str] = {Label.ACTION: "restart"}
"""Alertmanager routes alerts with this label to the restarter."""


@dataclass(frozen=True)
class Alert:
    """One alert. `description` follows `Job NAME` and is a template; `summary` is static."""

    name: str
    severity: str
    expr: str
    hold: float
    """Seconds for which `expr` must hold before the alert fires; 0 means at once."""
    summary: str
    description: str
    keep_firing: float = 0.0
    """Seconds for which the alert keeps firing after `expr` ends."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def _window(config: Config) -> str:
    return duration(config.timing.window)


def _over_window(aggregation: str, config: Config, metric: str, *matchers: str) -> str:
    return f"{aggregation}_over_time({config.series(metric, *matchers)}[{_window(config)}])"


def fragmented(config: Config) -> Alert:
    """The ratio varies between snapshots: the named rank is the one that had the reported ratio."""
    worst = f"topk(1, {_over_window('max', config, recording.RANK_WORST, JOB)})"
    sizes = (
        f" The largest possible allocation is now {figure(config, names.LARGEST_ALLOCATABLE, MOMENT)} of "
        f"{figure(config, names.FREE_TOTAL, MOMENT)} free."
    )
    # an anchor and empty_cache have other costs, and each rank can have another anchor
    settings = f'{Label.SETTING}!~"anchor:.*|{RECORDED_EMPTIED}"'
    needs = f"max by ({Label.SETTING}) ({_over_window('last', config, names.WHATIF_SMALLEST_LIMIT, JOB, settings)})"
    recorded = f'{Label.SETTING}="{RECORDED_PACKED}"'
    needed = f"max({_over_window('last', config, names.WHATIF_SMALLEST_LIMIT, JOB, recorded)})"
    better = f"bottomk(1, {needs} <= on () group_left () {number(1 - WORTHWHILE)} * {needed})"
    setting = f" The last recorded step needs less memory with the setting {{{{ .Labels.{Label.SETTING} }}}}."
    return Alert(
        name=AlertName.FRAGMENTED,
        severity=WARNING,
        expr=f"max_over_time({config.rule(recording.JOB_ACTIONABLE)}[{_window(config)}])"
        f" > {number(config.thresholds.fragmentation_ratio)}",
        hold=config.timing.hold,
        keep_firing=config.timing.keep_firing,
        labels=RESTART,
        summary="GPU memory is fragmented",
        description=f"{templates.lookup(config, worst, WHERE)}: fragmentation ratio {value('humanize')} (threshold "
        f"{number(config.thresholds.fragmentation_ratio)}) within the last {_window(config)}."
        f"{templates.lookup(config, worst, sizes)} Larger requests will fail. Checkpoint and restart the job."
        f"{templates.lookup(config, better, setting)} To choose a better allocator setting, run `gpufrag whatif` on a "
        "recording.",
        annotations={
            f"worst_{label}": templates.lookup(config, worst, f"{{{{ .Labels.{label} }}}}")
            for label in (Label.RANK, Label.POD, Label.INSTANCE)
        },
    )


def cache_fragmented(config: Config) -> Alert:
    worst = f"topk(1, {_over_window('max', config, recording.RANK_CACHE, JOB)})"
    recent = _over_window("max", config, recording.RANK_CACHE)
    return Alert(
        name=AlertName.CACHE_FRAGMENTED,
        severity=INFO,
        expr=f"max by ({config.by_job}) ({recent}) > {number(config.thresholds.cache_ratio)}",
        hold=config.timing.hold,
        summary="The allocator's cache is fragmented, which is normal in healthy jobs",
        description=f"{templates.lookup(config, worst, WHERE)}: cache ratio {value('humanize')}. This alone is not a "
        "problem: the allocator returns free segments to the driver before it raises an out-of-memory error. Act only "
        f"if {AlertName.FRAGMENTED} also fires.",
    )


def _request_served(config: Config, *matchers: str) -> str:
    """PromQL for largest_allocatable at its best moment / largest_recurring."""
    allocatable = _over_window("max", config, names.LARGEST_ALLOCATABLE, *matchers, BETWEEN_PEAKS)
    recurring = _over_window("max", config, names.LARGEST_RECURRING, *matchers)
    return f"max without ({Label.AT}) ({allocatable}) / {recurring}"


def next_request_will_fail(config: Config) -> Alert:
    """Peaks do not count: at a peak the recurring block itself is allocated."""
    worst = f"bottomk(1, {_request_served(config, JOB)})"
    largest = figure(config, names.LARGEST_ALLOCATABLE, DEVICE, BETWEEN_PEAKS, over="max")
    sizes = (
        f"{WHERE}: the largest request of the last recorded step is "
        f"{figure(config, names.LARGEST_RECURRING, DEVICE, over='max')}, but for the last {_window(config)} the "
        f"largest possible allocation was {largest}"
    )
    return Alert(
        name=AlertName.NEXT_REQUEST_WILL_FAIL,
        severity=CRITICAL,
        expr=f"min by ({config.by_job}) ({_request_served(config)}) < 1",
        hold=config.timing.hold,
        summary="The job's next large allocation will fail",
        description=f"{templates.lookup(config, worst, sizes)}. Save a checkpoint now. Then restart the job, or reduce "
        "the batch size or the sequence length.",
    )


def tight(config: Config) -> Alert:
    share = recording.free_share(lambda metric: _over_window("min", config, metric, JOB))
    left = f"{WHERE}: {figure(config, names.FREE_TOTAL, MOMENT, over='min')} left"
    return Alert(
        name=AlertName.TIGHT,
        severity=INFO,
        expr=f"min_over_time({config.rule(recording.JOB_FREE_SHARE)}[{_window(config)}])"
        f" < {number(config.thresholds.free_share)}",
        hold=3 * config.timing.hold,
        summary="GPU memory is nearly full",
        description=f"{templates.lookup(config, f'bottomk(1, {share})', left)}, {value('humanizePercentage')} of the "
        "limit. The memory is full, not fragmented: a restart does not help. Reduce the batch size, or ignore this if "
        "the job is sized to fill the device.",
    )


def _margin_share(config: Config, *matchers: str) -> str:
    """PromQL for margin / limit. The limit of the analysed step is margin + smallest limit."""
    margin = _over_window("min", config, names.STEP_MARGIN, *matchers)
    return f"{margin} / ({margin} + {_over_window('max', config, names.STEP_SMALLEST_LIMIT, *matchers)})"


def margin_low(config: Config) -> Alert:
    left = f"{WHERE}: the margin of the last analysed step is {figure(config, names.STEP_MARGIN, DEVICE, over='min')}"
    return Alert(
        name=AlertName.MARGIN_LOW,
        severity=WARNING,
        expr=f"min by ({config.by_job}) ({_margin_share(config)}) < {number(config.thresholds.margin_share)}",
        hold=config.timing.hold,
        summary="A slightly larger step runs out of GPU memory",
        description=f"{templates.lookup(config, f'bottomk(1, {_margin_share(config, JOB)})', left)}, "
        f"{value('humanizePercentage')} of the memory limit. A step that needs that much more runs out of memory. "
        "Compare the smallest limits under other allocator settings on the Job dashboard, or reduce the batch size.",
    )


def _margin_left(config: Config, *matchers: str) -> str:
    """PromQL for the seconds until the margin is 0. Both trends count: a single drop bends only the longer one."""
    history, horizon = config.timing.margin_history, number(config.thresholds.margin_horizon)
    series = config.series(names.STEP_MARGIN, *matchers)
    recent = f"{series}[{duration(history / 2)}]"
    left = f"clamp_min({_over_window('last', config, names.STEP_MARGIN, *matchers)}, 0) / -(deriv({recent}) < 0)"
    known = f"present_over_time({series}[{_window(config)}] offset {duration(history)})"
    trends = [f"predict_linear({span}, {horizon}) <= 0" for span in (recent, f"{series}[{duration(history)}]")]
    return " and ".join([left, *trends, known])


def margin_falling(config: Config) -> Alert:
    falls = f"{WHERE}: the margin is {figure(config, names.STEP_MARGIN, DEVICE)} and falls"
    return Alert(
        name=AlertName.MARGIN_FALLING,
        severity=WARNING,
        expr=f"min by ({config.by_job}) ({_margin_left(config)})",
        hold=config.timing.hold,
        summary="Steps need more and more GPU memory and will soon fail",
        description=f"{templates.lookup(config, f'bottomk(1, {_margin_left(config, JOB)})', falls)}. At this rate it "
        f"reaches 0 in {value('humanizeDuration')}, and the job runs out of memory. Save a checkpoint now, then look "
        "for a leak, growing batches or growing fragmentation.",
    )


def thrashing(config: Config) -> Alert:
    window = duration(config.timing.rate_window)
    worst = f"topk(1, rate({config.series(names.ALLOC_RETRIES, JOB)}[{window}]))"
    recent = f"rate({config.series(names.ALLOC_RETRIES)}[{window}])"
    return Alert(
        name=AlertName.THRASHING,
        severity=WARNING,
        expr=f"max by ({config.by_job}) ({recent}) * 60 > {number(config.thresholds.retries_per_minute)}",
        hold=2 * config.timing.hold,
        summary="The allocator keeps flushing its cache, which stalls the job",
        description=f"{templates.lookup(config, worst, WHERE)}: {value('humanize')} cache flushes per minute. Reduce "
        "the peak memory, or raise the memory limit of the process.",
    )


def out_of_memory(config: Config) -> Alert:
    """By the time of the last error, because no rate shows a process's first; by the counter if no time is known.

    Over a window, because many processes and their pods are gone right after the error.
    """
    event, by_job = duration(config.timing.event), config.by_job
    counted = f"sum by ({by_job}) (increase({config.series(names.OOMS)}[{event}])) > 0"
    recent = f"max_over_time({config.series(names.OOM_LAST_TIMESTAMP)}[{event}])"
    latest = f"topk(1, max_over_time({config.series(names.OOM_LAST_TIMESTAMP, JOB)}[{event}]))"
    requested = figure(config, names.OOM_LAST_REQUESTED, DEVICE, before=" The last failed request was for ", after=".")
    causes = f"sum by ({Label.CAUSE}) (last_over_time({config.series(names.OOM_CAUSES, JOB)}[{event}])) > 0"
    cause = f" Cause: {{{{ .Labels.{Label.CAUSE} }}}} ({{{{ .Value }}}} in total)."
    return Alert(
        name=AlertName.OUT_OF_MEMORY,
        severity=WARNING,
        expr=f"{counted} or count by ({by_job}) (time() - {recent} < {number(config.timing.event)})",
        hold=0,
        summary="A GPU memory request failed",
        description=f"{templates.lookup(config, latest, WHERE)}: out of memory within the last {event}."
        f"{templates.lookup(config, latest, requested)}{templates.each(config, causes, cause)} "
        "The job may have caught the error. Run `gpufrag oom list` on the host for details.",
    )


def leak_suspected(config: Config) -> Alert:
    recent = _over_window("max", config, recording.RANK_LEFT)
    worst = f"bottomk(1, {_over_window('max', config, recording.RANK_LEFT, JOB)})"
    by_step = figure(config, names.LEAK_PER_STEP, RANK, only=" > 0", before=", by ", after=" per step")
    by_second = figure(config, names.LEAK_PER_SECOND, RANK, only=" > 0", before=", by ", after=" per second")
    grows = f"{WHERE}: allocated memory keeps growing{by_step}{by_second}"
    return Alert(
        name=AlertName.LEAK_SUSPECTED,
        severity=WARNING,
        expr=f"min by ({config.by_job}) ({recent}) < {number(config.thresholds.leak_horizon)}",
        hold=3 * config.timing.hold,
        summary="GPU memory is leaking",
        description=f"{templates.lookup(config, worst, grows)}. At this rate the memory is full in "
        f"{value('humanizeDuration')}. Look for tensors that are kept with their graph (a summed loss, a list of "
        "outputs) and for unbounded caches.",
    )


def foreign_process(config: Config) -> Alert:
    worst = f"topk(1, {_over_window('min', config, names.DEVICE_OTHERS_USED, JOB)})"
    recent = _over_window("min", config, names.DEVICE_OTHERS_USED)
    where = (
        f" (device {{{{ .Labels.{Label.DEVICE} }}}}, {{{{ .Labels.{Label.UUID} }}}}"
        f"{{{{ with .Labels.{Label.INSTANCE} }}}}, {{{{ . }}}}{{{{ end }}}})"
    )
    return Alert(
        name=AlertName.FOREIGN_PROCESS,
        severity=INFO,
        expr=f"max by ({config.by_job}) ({recent}) > {config.thresholds.foreign_bytes}",
        hold=3 * config.timing.hold,
        summary="Other processes hold memory on the job's GPU",
        description=f"{templates.lookup(config, worst, where)}: processes without an agent hold "
        f"{value('humanize1024')}B. Run nvidia-smi on the host to list them. Often, a process of an earlier job is "
        "left over.",
    )


def sample_stale(config: Config) -> Alert:
    worst = f"bottomk(1, {_over_window('max', config, names.SAMPLE_TIMESTAMP, JOB)})"
    recent = _over_window("max", config, names.SAMPLE_TIMESTAMP)
    return Alert(
        name=AlertName.SAMPLE_STALE,
        severity=WARNING,
        expr=f"time() - min by ({config.by_job}) ({recent}) > {number(config.thresholds.stale)}",
        hold=config.timing.hold,
        summary="A rank is alive but its agent writes no samples: the process hangs, or the host's clock is wrong",
        description=f"{templates.lookup(config, worst, WHERE)}: the last sample is {value('humanizeDuration')} old. "
        "Run `py-spy dump --pid PID` to see where the process hangs.",
    )


def rank_missing(config: Config) -> Alert:
    """A job that has ended altogether has no series, so it does not fire."""
    alive, memory = config.rule(recording.JOB_RANKS), duration(config.timing.memory)
    return Alert(
        name=AlertName.RANK_MISSING,
        severity=WARNING,
        expr=f"max_over_time({alive}[{memory}]) - {alive} > 0",
        hold=config.timing.hold,
        summary="Ranks are missing while other ranks of the job run",
        description=f": {value('humanize')} rank(s) disappeared within the last {memory}. The other ranks may wait for "
        "them in a collective. Check the logs of the missing ranks.",
    )


def target_down(config: Config) -> Alert:
    """A target counts as a sidecar if its labels match target_selector, or if it exported gpufrag metrics recently."""
    down = f"{_over_window('max', config, 'up', config.target_selector)} == 0"
    known = f"present_over_time({config.series(names.BUILD_INFO)}[{duration(config.timing.memory)}])"
    known_down = f"({_over_window('max', config, 'up')} == 0 and on (job, {Label.INSTANCE}) {known})"
    one = templates.lookup(
        config, f"{config.series('up', JOB)} == 0", f" (for example, {{{{ .Labels.{Label.INSTANCE} }}}})"
    )
    return Alert(
        name=AlertName.TARGET_DOWN,
        severity=WARNING,
        expr=f"count by ({config.by_job}) ({down} or {known_down})",
        hold=config.timing.hold,
        summary="Prometheus cannot scrape a sidecar, so its ranks are not monitored",
        description=f": {value('humanize')} target(s) down{one}. The Targets page of Prometheus shows the error. "
        "Training is not affected.",
    )


def pause_share(config: Config, *matchers: str) -> str:
    """Return PromQL for the share of time for which the agent pauses its process, by rank."""
    stall = config.series(names.STALL, *matchers, recording.PAUSES)
    return f"sum without ({Label.CAUSE}) (rate({stall}[{duration(config.timing.rate_window)}]))"


def agent_overhead(config: Config) -> Alert:
    return Alert(
        name=AlertName.AGENT_OVERHEAD,
        severity=WARNING,
        expr=f"max by ({config.by_job}) ({pause_share(config)}) > {number(config.thresholds.agent_share)}",
        hold=2 * config.timing.hold,
        summary="The gpufrag agent slows the job down",
        description=f"{templates.lookup(config, f'topk(1, {pause_share(config, JOB)})', WHERE)}: the agent pauses the "
        f"process for {value('humanizePercentage')} of the time. Increase the agent's interval or reduce its "
        "budget.",
    )


def restart_refused(config: Config) -> Alert:
    recent = f"last_over_time({config.series(names.RESTARTER_CIRCUIT_OPEN)}[{_window(config)}])"
    return Alert(
        name=AlertName.RESTART_REFUSED,
        severity=CRITICAL,
        expr=f"max by ({config.by_job}) ({recent}) == 1",
        hold=0,
        summary="The restarter's circuit breaker is open: no job is restarted",
        description=": the restarter restarts no job, because restarts failed, did not help, or were too frequent. "
        "Check the restarter's decisions, fix the cause, then close the circuit breaker.",
    )


ALERTS: Mapping[str, tuple[Callable[[Config], Alert], ...]] = {
    "memory": (
        fragmented,
        cache_fragmented,
        next_request_will_fail,
        tight,
        margin_low,
        margin_falling,
        thrashing,
        out_of_memory,
        leak_suspected,
        foreign_process,
    ),
    "health": (sample_stale, rank_missing, target_down, agent_overhead, restart_refused),
}
"""By rule group."""
