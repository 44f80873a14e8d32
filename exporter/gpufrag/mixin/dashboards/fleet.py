"""The Fleet dashboard: all jobs, the worst first; what went wrong; whether monitoring is complete."""

from __future__ import annotations

from typing import Any

from ...metrics import names
from ...metrics.names import AlertName, Label
from .. import recording
from ..config import Config
from .document import FLEET, Row, document, open_job, started
from .panels import AnyPanel, Column, Face, Query, lines, number, rows
from .queries import Selection, of_jobs

ABOUT = "All jobs with gpufrag: how much memory is fragmented, what it costs, and what went wrong."


def build(config: Config) -> dict[str, Any]:
    s = Selection(config, of_jobs(config, single=False))
    return document(FLEET, ABOUT, s, [_overview(s), _jobs(s), _faults(s), _health(s)])


def firing(s: Selection) -> str:
    return s.rule("ALERTS", 'alertname=~"Gpu.+"', 'alertstate="firing"')


def _overview(s: Selection) -> Row:
    config, trigger = s.config, s.config.thresholds.fragmentation_ratio
    stranded, reserved = (f"sum({s.rule(record)})" for record in (recording.JOB_STRANDED, recording.JOB_RESERVED))
    jobs = f"count({s.rule(recording.JOB_RANKS)})"
    out_of_memory = config.runbook(AlertName.OUT_OF_MEMORY)
    return Row(
        "Overview",
        [
            number(Face("Jobs", "Training jobs with at least one living rank.", "short", 3, 4), Query(jobs)),
            number(
                Face("Ranks", "Living processes with an agent. If they are fewer than you started, some exited.",
                    "short", 3, 4),
                Query(f"sum({s.rule(recording.JOB_RANKS)})"),
            ),
            number(
                Face("Fragmented jobs",
                    f"Jobs with a rank that has free memory, but cannot allocate more than 1/{trigger:g} of it at "
                    "once. A larger request fails although the memory is free. Should be 0.",
                    "short", 4, 4, runbook=config.runbook(AlertName.FRAGMENTED)),
                Query(f"count({s.rule(recording.JOB_ACTIONABLE)} > {trigger:g}) or 0 * {jobs}"),
                [1],
            ),
            number(
                Face("Stranded memory",
                    "Free memory pinned between blocks in use, over all ranks, each at its worst moment. This memory "
                    "is lost to fragmentation.",
                    "bytes", 4, 4),
                Query(stranded),
            ),
            number(
                Face("Stranded share", "Stranded memory as a share of all reserved memory.",
                    "percentunit", 3, 4, decimals=1),
                Query(f"{stranded} / {reserved}"),
                [0.05, 0.15],
            ),
            number(
                Face("Out-of-memory errors",
                    "In the selected time range, over all jobs, including errors that the program caught.",
                    "short", 4, 4, decimals=0, runbook=out_of_memory),
                Query(f"sum(increase({s.series(names.OOMS)}[$__range]))"),
                [1],
            ),
            number(
                Face("Alerts", "Alerts of gpufrag that fire now; the table below lists them.", "short", 3, 4),
                Query(f"count({firing(s)}) or 0 * {jobs}"),
                [1],
            ),
        ],
    )  # fmt: skip


def _jobs(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    link = open_job(config, "${__field.labels.%s}")
    return Row(
        "Jobs",
        [
            _job_table(s),
            lines(
                Face("Worst fragmentation ratio by job",
                    "Free memory divided by the largest possible allocation, for the worst rank of each job. 1 is "
                    f"perfect. Above the line ({limits.fragmentation_ratio:g}) the alert that may restart the job "
                    "fires after some minutes. Jobs with full memory have no curve. Click a curve to open its job.",
                    "none", decimals=2, runbook=config.runbook(AlertName.FRAGMENTED)),
                Query(s.rule(recording.JOB_ACTIONABLE), s.job),
                thresholds=[limits.fragmentation_ratio],
                link=link,
            ),
            lines(
                Face("Stranded memory by job",
                    "Free memory pinned between blocks in use, over all ranks of a job.",
                    "bytes"),
                Query(s.rule(recording.JOB_STRANDED), s.job),
                link=link,
            ),
            lines(
                Face("Unused share by job",
                    "Share of the reserved memory that no tensor uses, over all ranks of a job. Below "
                    f"{limits.unused_tune:.0%} is fine, above {limits.unused_act:.0%} is waste. If the fragmentation "
                    "ratio is near 1, the job only caches more than it needs, which affects only other processes on "
                    "the device.",
                    "percentunit", decimals=0),
                Query(s.rule(recording.JOB_UNUSED), s.job),
                thresholds=[limits.unused_tune, limits.unused_act],
                link=link,
            ),
            lines(
                Face("Peak fragmentation by job",
                    "1 - peak active / peak reserved: the share of the reserved memory that no tensor uses, even at "
                    "the peak. Better allocator settings can save up to this much.",
                    "percentunit", decimals=0),
                Query(s.rule(recording.JOB_PEAK), s.job),
                link=link,
            ),
        ],
    )  # fmt: skip


def _job_table(s: Selection) -> AnyPanel:
    config, limits = s.config, s.config.thresholds
    by = config.by_job
    ooms = f"sum by ({by}) (increase({s.series(names.OOMS)}[$__range]))"
    retries = f"60 * max by ({by}) (rate({s.series(names.ALLOC_RETRIES)}[$__rate_interval]))"
    link = open_job(config, "${__data.fields.%s}")
    ratio, unused = [limits.fragmentation_ratio], [limits.unused_tune, limits.unused_act]
    return rows(
        Face("Jobs, worst first",
            "Click a name to open the job. Ratio: fragmentation ratio of the worst rank; empty if the memory is full. "
            "Free: free memory of the fullest rank as a share of its limit. Cache ratio: often high in healthy jobs. "
            "Unused: share of the reserved memory that no tensor uses. Errors: out-of-memory errors in the selected "
            "time range. Retries: cache flushes per minute of the worst rank; each stalls the job.",
            "none", 24, 7),
        *(Column(label, label=label, link=link) for label in config.job_labels),
        Column("Ranks", s.rule(recording.JOB_RANKS), unit="short"),
        Column("Ratio", s.rule(recording.JOB_ACTIONABLE), unit="none", decimals=2, thresholds=ratio),
        Column("Free", s.rule(recording.JOB_FREE_SHARE), unit="percentunit", decimals=0),
        Column("Cache ratio", s.rule(recording.JOB_CACHE), unit="none", decimals=1),
        Column("Stranded", s.rule(recording.JOB_STRANDED), unit="bytes"),
        Column("Reserved", s.rule(recording.JOB_RESERVED), unit="bytes"),
        Column("Unused", s.rule(recording.JOB_UNUSED), unit="percentunit", decimals=0, thresholds=unused),
        Column("Errors", ooms, unit="short", decimals=0, thresholds=[1]),
        Column("Retries", retries, unit="short", decimals=1, thresholds=[limits.retries_per_minute]),
        sort="Ratio",
    )  # fmt: skip


def _faults(s: Selection) -> Row:
    config, by = s.config, s.config.by_job
    out_of_memory = config.runbook(AlertName.OUT_OF_MEMORY)
    return Row(
        "Faults",
        [
            rows(
                Face("Firing alerts", "The alerts of gpufrag that fire now, by job.", "none", 12, 8),
                Column("Alert", label="alertname", link=config.runbook("${__data.fields.Alert}")),
                Column("Severity", label=config.severity_label),
                *(Column(label, label=label) for label in config.job_labels),
                Column("", f"max by (alertname, {config.severity_label}, {by}) ({firing(s)})"),
            ),
            lines(
                Face("Out-of-memory errors by cause",
                    "The cause that gpufrag found: capacity, fragmentation, neighbours or limit.",
                    "short", decimals=0, runbook=out_of_memory),
                Query(s.ooms_by_cause, f"{{{{{Label.CAUSE}}}}}"),
                bars=True,
            ),
            lines(
                Face("Out-of-memory errors by job",
                    "Failed requests, including those that the program caught.",
                    "short", decimals=0, runbook=out_of_memory),
                Query(f"sum by ({by}) (increase({s.series(names.OOMS)}[$__rate_interval]))", s.job),
                bars=True,
            ),
            lines(
                Face("Ranks started by job",
                    "Ranks with a new process, whether gpufrag, the job's controller or a person restarted them.",
                    "short", decimals=0),
                Query(f"count by ({by}) ({started(s, '$__interval')})", s.job),
                bars=True,
            ),
        ],
    )  # fmt: skip


def _health(s: Selection) -> Row:
    config, limits, by = s.config, s.config.thresholds, s.config.by_job
    up = s.target("up", config.target_selector)
    stall = s.series(names.STALL, recording.PAUSES)
    return Row(
        "Monitoring",
        [
            lines(
                Face("Targets down by job",
                    "Sidecars that Prometheus cannot scrape. Their jobs run, but are not monitored.",
                    "short", 8, decimals=0, runbook=config.runbook(AlertName.TARGET_DOWN)),
                Query(f"count by ({by}) ({up} == 0) or 0 * count by ({by}) ({up})", s.job),
            ),
            lines(
                Face("Age of the oldest sample by job",
                    "An agent writes one sample per second. If the age grows, the process hangs.",
                    "s", 8, runbook=config.runbook(AlertName.SAMPLE_STALE)),
                Query(f"max by ({by}) (time() - {s.series(names.SAMPLE_TIMESTAMP)})", s.job),
                thresholds=[limits.stale],
            ),
            lines(
                Face("Agent overhead by job",
                    "Share of time for which the agent pauses the worst rank of a job. The agent limits itself to "
                    "0.1 %; above the line an alert fires.",
                    "percentunit", 8, decimals=3, runbook=config.runbook(AlertName.AGENT_OVERHEAD)),
                Query(f"max by ({by}) (sum without ({Label.CAUSE}) (rate({stall}[$__rate_interval])))", s.job),
                thresholds=[limits.agent_share],
            ),
        ],
    )  # fmt: skip
