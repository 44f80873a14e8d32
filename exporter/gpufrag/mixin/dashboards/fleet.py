"""The Fleet dashboard: every job, the worst first; what went wrong, and whether all can be seen."""

from __future__ import annotations

from typing import Any

from .. import recording
from ..config import Config
from . import fleet_faults
from .frame import FLEET, Row, document, open_job
from .panels import AnyPanel, Face, Query, lines, number
from .selection import Selection, of_jobs
from .tables import Column, rows

ABOUT = "All jobs with gpufrag: who has memory that cannot be used, what it costs, and what went wrong."


def build(config: Config) -> dict[str, Any]:
    selection = Selection(config, of_jobs(config, single=False))
    return document(
        FLEET,
        ABOUT,
        selection,
        [_now(selection), _jobs(selection), fleet_faults.faults(selection), fleet_faults.health(selection)],
    )


def _now(s: Selection) -> Row:
    config = s.config
    trigger = config.thresholds.fragmentation_ratio
    stranded, reserved = (f"sum({s.rule(record)})" for record in (recording.JOB_STRANDED, recording.JOB_RESERVED))
    jobs = f"count({s.rule(recording.JOB_RANKS)})"
    return Row(
        "Is anything wrong?",
        [
            number(
                Face("Jobs", "Training jobs with at least one living rank.", "short", 3, 4),
                Query(jobs),
            ),
            number(
                Face("Ranks", "Processes that compute and report. Fewer than you started: some died.", "short", 3, 4),
                Query(f"sum({s.rule(recording.JOB_RANKS)})"),
            ),
            number(
                Face(
                    "Fragmented jobs",
                    f"Jobs in which a rank has memory free, but no piece of it is larger than 1/{trigger:g} of it: a "
                    "larger request ends in an out-of-memory error although the memory is there. Should be 0.",
                    "short", 4, 4, runbook=config.runbook("GpuMemoryFragmented"),
                ),
                Query(f"count({s.rule(recording.JOB_ACTIONABLE)} > {trigger:g}) or 0 * {jobs}"),
                [1],
            ),
            number(
                Face(
                    "Stranded memory",
                    "Free memory pinned between blocks in use, over all ranks, each at its worst moment. It is paid "
                    "for and nobody can use it: the price of fragmentation.",
                    "bytes", 4, 4,
                ),
                Query(stranded),
            ),
            number(
                Face(
                    "Stranded share",
                    "The same as a share of all memory that the jobs have taken from the driver.",
                    "percentunit", 3, 4, decimals=1,
                ),
                Query(f"{stranded} / {reserved}"),
                [0.05, 0.15],
            ),
            number(
                Face(
                    "Out-of-memory errors",
                    "In the time shown, over all jobs; those that a program caught and survived are counted too.",
                    "short", 4, 4, decimals=0, runbook=config.runbook("GpuMemoryOutOfMemory"),
                ),
                Query(f"sum(increase({s.series('gpufrag_allocator_ooms_total')}[$__range]))"),
                [1],
            ),
            number(
                Face("Alerts", "Alerts of gpufrag that fire now; the table below names them.", "short", 3, 4),
                Query(f"count({fleet_faults.firing(s)}) or 0 * {jobs}"),
                [1],
            ),
        ],
    )  # fmt: skip


def _jobs(s: Selection) -> Row:
    config, limits = s.config, s.config.thresholds
    legend = s.job
    link = open_job(config, "${__field.labels.%s}")
    return Row(
        "Which job, and what does it waste?",
        [
            _job_table(s),
            lines(
                Face(
                    "Worst fragmentation ratio by job",
                    "Memory that the job could have, divided by the largest single request that would succeed, for "
                    f"the worst rank of each job. 1 is perfect; above the line ({limits.fragmentation_ratio:g}) the "
                    "alert that may restart a job waits for it to last. No curve where the memory is simply full. "
                    "Click a curve to open its job.",
                    "none", decimals=2, runbook=config.runbook("GpuMemoryFragmented"),
                ),
                Query(s.rule(recording.JOB_ACTIONABLE), legend),
                thresholds=[limits.fragmentation_ratio],
                link=link,
            ),
            lines(
                Face(
                    "Stranded memory by job",
                    "Free memory pinned between blocks in use, over all ranks of a job. The job on top wastes most.",
                    "bytes",
                ),
                Query(s.rule(recording.JOB_STRANDED), legend),
                link=link,
            ),
            lines(
                Face(
                    "Unused share by job",
                    "Share of the memory taken from the driver in which no tensor is, over all ranks of a job. Below "
                    f"{limits.unused_tune:g} is fine, above {limits.unused_act:g} is waste. High while the ratio "
                    "beside it stays near 1: the job has cached more than it needs, which harms only its neighbours.",
                    "percentunit", decimals=0,
                ),
                Query(s.rule(recording.JOB_UNUSED), legend),
                thresholds=[limits.unused_tune, limits.unused_act],
                link=link,
            ),
            lines(
                Face(
                    "Peak fragmentation by job",
                    "1 - peak active / peak reserved, the figure that papers report: how much more memory the "
                    "allocator had to take than the tensors ever needed at once. Says what a cure could save.",
                    "percentunit", decimals=0,
                ),
                Query(s.rule(recording.JOB_PEAK), legend),
                link=link,
            ),
        ],
    )  # fmt: skip


def _job_table(s: Selection) -> AnyPanel:
    config, limits = s.config, s.config.thresholds
    by = config.by_job
    ooms = f"sum by ({by}) (increase({s.series('gpufrag_allocator_ooms_total')}[$__range]))"
    retries = f"60 * max by ({by}) (rate({s.series('gpufrag_allocator_alloc_retries_total')}[$__rate_interval]))"
    link = open_job(config, "${__data.fields.%s}")
    ratio, unused = [limits.fragmentation_ratio], [limits.unused_tune, limits.unused_act]
    return rows(
        Face(
            "Jobs, the worst first",
            "One line a job; click a name to open it. Ratio: what the job could have, divided by the largest request "
            "that would succeed, on its worst rank; empty where the memory is simply full. Free: what its fullest rank "
            "could still have, as a share of its limit. Cache ratio: the same from the cache alone, often high in a "
            "healthy job. Unused: share of the reserved memory without a tensor. Errors: out of memory, in the time "
            "shown. Retries: how often a minute its worst rank had to flush the cache; each stalls the job.",
            "none", 24, 7,
        ),
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
