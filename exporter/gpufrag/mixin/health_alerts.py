"""Alerts about gpufrag itself: is every rank seen, is what is seen fresh, what does it cost."""

from __future__ import annotations

from . import recording as rules
from . import texts
from .alert import CRITICAL, WARNING, Alert
from .config import Config, duration, number
from .texts import JOB, WHERE


def sample_stale(config: Config) -> Alert:
    metric, window = "gpufrag_sample_timestamp_seconds", duration(config.timing.window)
    worst = f"bottomk(1, max_over_time({config.series(metric, JOB)}[{window}]))"
    recent = f"max_over_time({config.series(metric)}[{window}])"
    return Alert(
        name="GpufragSampleStale",
        severity=WARNING,
        expr=f"time() - min by ({config.by_job}) ({recent}) > {number(config.thresholds.stale)}",
        hold=config.timing.hold,
        summary="A rank lives but its agent has written nothing for a while: the process hangs, or its clock is wrong.",
        description=f"the last sample of {texts.lookup(config, worst, WHERE)} is "
        f"{texts.value('humanizeDuration')} old. See where it hangs: py-spy dump --pid PID.",
    )


def rank_missing(config: Config) -> Alert:
    """A rank is missed by those that go on: a job that has ended altogether has no series and misses nobody."""
    alive, memory = config.rule(rules.JOB_RANKS), duration(config.timing.memory)
    return Alert(
        name="GpufragRankMissing",
        severity=WARNING,
        expr=f"max_over_time({alive}[{memory}]) - {alive} > 0",
        hold=config.timing.hold,
        summary="Ranks that were there are gone while others of their job go on.",
        description=f"ranks gone within the last {memory}: {texts.value('humanize')}. The "
        "others may be waiting for them in a collective call: look at the log of what is missing.",
    )


def target_down(config: Config) -> Alert:
    """A target counts as ours by its labels, or because it served gpufrag a while ago."""
    window, memory = duration(config.timing.window), duration(config.timing.memory)
    down = f"max_over_time({config.series('up', config.target_selector)}[{window}]) == 0"
    known = f"present_over_time({config.series('gpufrag_build_info')}[{memory}])"
    known_down = f"(max_over_time({config.series('up')}[{window}]) == 0 and on (job, instance) {known})"
    one = texts.lookup(config, f"{config.series('up', JOB)} == 0", ", among them {{ .Labels.instance }}")
    return Alert(
        name="GpufragTargetDown",
        severity=WARNING,
        expr=f"count by ({config.by_job}) ({down} or {known_down})",
        hold=config.timing.hold,
        summary="Prometheus cannot scrape a sidecar, so nobody watches its ranks.",
        description=f"targets that do not answer: {texts.value('humanize')}{one}. The page Targets of "
        "Prometheus shows the error; training itself is not touched by it.",
    )


def agent_overhead(config: Config) -> Alert:
    worst, share = f"topk(1, {_held(config, JOB)})", _held(config)
    return Alert(
        name="GpufragAgentOverhead",
        severity=WARNING,
        expr=f"max by ({config.by_job}) ({share}) > {number(config.thresholds.agent_share)}",
        hold=2 * config.timing.hold,
        summary="The agent holds up the process for longer than it is meant to.",
        description=f"it takes {texts.value('humanizePercentage')} of the time of "
        f"{texts.lookup(config, worst, WHERE)}. Give it a longer interval, and tell us: it should space itself out.",
    )


def _held(config: Config, *matchers: str) -> str:
    """The share of time for which the agent holds up a process."""
    stall = config.series("gpufrag_stall_seconds_total", *matchers, rules.HELD_UP)
    return f"sum without (cause) (rate({stall}[{duration(config.timing.rate_window)}]))"


def restart_refused(config: Config) -> Alert:
    window = duration(config.timing.window)
    open_lately = f"last_over_time({config.series('gpufrag_restarter_circuit_open')}[{window}])"
    return Alert(
        name="GpufragRestartRefused",
        severity=CRITICAL,
        expr=f"max by ({config.by_job}) ({open_lately}) == 1",
        hold=0,
        summary="The restarter has stopped restarting jobs until a person lets it go on.",
        description="its circuit breaker is open, because restarts did not help or came too often. "
        "Its decisions say which; mend the cause, then close the breaker.",
    )


ALERTS = (sample_stale, rank_missing, target_down, agent_overhead, restart_refused)
