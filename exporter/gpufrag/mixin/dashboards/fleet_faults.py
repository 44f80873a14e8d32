"""Rows of the Fleet dashboard: what went wrong, and whether all can be seen."""

from __future__ import annotations

from .. import recording
from .frame import Row, begun
from .panels import Face, Query, lines
from .selection import Selection
from .tables import Column, rows


def firing(s: Selection) -> str:
    """The alerts of gpufrag that fire."""
    return s.rule("ALERTS", 'alertname=~"Gpu.+"', 'alertstate="firing"')


def faults(s: Selection) -> Row:
    config = s.config
    by, legend = config.by_job, s.job
    ooms, causes = s.series("gpufrag_allocator_ooms_total"), s.series("gpufrag_oom_causes_total")
    return Row(
        "What went wrong?",
        [
            rows(
                Face(
                    "Alerts that fire",
                    "What Prometheus holds to be wrong just now; click a name for what it means and what to do.",
                    "none", 12, 8,
                ),
                Column("Alert", label="alertname", link=f"{config.runbook_url}/${{__data.fields.Alert}}.md"),
                Column("Severity", label=config.severity_label),
                *(Column(label, label=label) for label in config.job_labels),
                Column("", f"max by (alertname, {config.severity_label}, {by}) ({firing(s)})"),
            ),
            lines(
                Face(
                    "Out-of-memory errors by cause",
                    "What gpufrag found when a request failed: a full device, fragmentation, a neighbour, a limit.",
                    "short", decimals=0, runbook=config.runbook("GpuMemoryOutOfMemory"),
                ),
                Query(f"sum by (cause) (increase({causes}[$__rate_interval]))", "{{cause}}"),
                bars=True,
            ),
            lines(
                Face(
                    "Out-of-memory errors by job",
                    "Requests that failed for good, those that a program caught and survived included.",
                    "short", decimals=0, runbook=config.runbook("GpuMemoryOutOfMemory"),
                ),
                Query(f"sum by ({by}) (increase({ooms}[$__rate_interval]))", legend),
                bars=True,
            ),
            lines(
                Face(
                    "Ranks (re)started by job",
                    "Ranks whose process is a new one, whoever started it: gpufrag, the job's controller or a person.",
                    "short", decimals=0,
                ),
                Query(f"count by ({by}) ({begun(s, '$__interval')})", legend),
                bars=True,
            ),
        ],
    )  # fmt: skip


def health(s: Selection) -> Row:
    config, limits, by = s.config, s.config.thresholds, s.config.by_job
    up = s.target("up", config.target_selector)
    age = f"time() - {s.series('gpufrag_sample_timestamp_seconds')}"
    stall = (
        f"sum without (cause) (rate({s.series('gpufrag_stall_seconds_total', recording.HELD_UP)}[$__rate_interval]))"
    )
    return Row(
        "Is the picture complete, and what does it cost?",
        [
            lines(
                Face(
                    "Targets that do not answer by job",
                    "Sidecars that Prometheus cannot scrape. Their jobs run on, but are not seen here.",
                    "short", 8, decimals=0, runbook=config.runbook("GpufragTargetDown"),
                ),
                Query(f"count by ({by}) ({up} == 0) or 0 * count by ({by}) ({up})", s.job),
            ),
            lines(
                Face(
                    "Age of the oldest sample by job",
                    "An agent writes one a second. A sample that ages belongs to a process that hangs, or was killed.",
                    "s", 8, runbook=config.runbook("GpufragSampleStale"),
                ),
                Query(f"max by ({config.by_job}) ({age})", s.job),
                thresholds=[limits.stale],
            ),
            lines(
                Face(
                    "Time taken by gpufrag by job",
                    "Share of wall time for which the agent holds up the worst rank of a job. It keeps itself below "
                    "0.1 %; above the line it is a fault.",
                    "percentunit", 8, decimals=3, runbook=config.runbook("GpufragAgentOverhead"),
                ),
                Query(f"max by ({config.by_job}) ({stall})", s.job),
                thresholds=[limits.agent_share],
            ),
        ],
    )  # fmt: skip
