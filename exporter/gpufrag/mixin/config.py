"""What can be set of rules and dashboards: selectors, thresholds, times, labels. One Config builds all of them.

Each field's docstring gives its unit, its meaning and why the default is what it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..config import yaml_record
from ..config.yaml_record import Bytes, Seconds
from ..errors import UsageError
from . import limits

SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True)
class Thresholds:
    """From where on a figure is trouble. Alerts and the lines in the dashboards share them."""

    fragmentation_ratio: float = 4.0
    """free_total / largest_allocatable: above it, a request for a quarter of the free memory fails."""
    cache_ratio: float = 4.0
    """free_cached / largest_free_block; healthy trainings with varying lengths were seen at 24."""
    free_share: float = 0.05
    """free_total as a share of the limit: below it the device is full (tight), above it it can be fragmented."""
    unused_tune: float = 0.2
    """(reserved - allocated) / reserved: above it, the allocator's settings deserve a look."""
    unused_act: float = 0.4
    """The same: above it, memory is wasted."""
    retries_per_minute: float = 1.0
    """Flushes of the cache that the driver's refusal forced; each stalls the job for tens of milliseconds."""
    foreign_bytes: Bytes = 1 << 30
    """Held on a device by processes without an agent; a desktop or a monitor takes less."""
    stale: Seconds = 120.0
    """Age of an agent's last sample; it writes one a second."""
    agent_share: float = 0.01
    """Share of wall time that the agent holds its process; it keeps itself below 0.001."""
    leak_horizon: Seconds = 86400.0
    """A leak that fills the memory within this time is told of."""

    def __post_init__(self) -> None:
        limits.check_thresholds(asdict(self))


@dataclass(frozen=True)
class Timing:
    """How often rules run and how long something must be true."""

    interval: Seconds = 30.0
    """Between two evaluations of a group; what no alert reads is recorded half as often."""
    window: Seconds = 120.0
    """The worst sample of this window counts: a scrape that is missed is no recovery. At least two scrapes long."""
    rate_window: Seconds = 300.0
    """For rates; at least four scrapes long."""
    hold: Seconds = 300.0
    """The `for` of the trigger; the other alerts take a multiple of it. Longer than a job's start-up."""
    keep_firing: Seconds = 300.0
    """For alerts that act: a gap in the data does not resolve them."""
    event: Seconds = 600.0
    """How long an event (an OOM) is told of."""
    memory: Seconds = 1800.0
    """What was there within this time (a rank, a target) is expected to be there."""

    def __post_init__(self) -> None:
        limits.check_times(asdict(self))


@dataclass(frozen=True)
class Config:
    """All that `gpufrag mixin build` can be told."""

    selector: str = ""
    """Matchers that every selector of a gpufrag metric gets, as in `cluster="a",namespace=~"ml-.*"`; empty: all.

    What is recorded of jobs has the labels of job_labels alone: where two rule files with different selectors are in
    one Prometheus, the label that they differ in belongs into job_labels too.
    """
    target_selector: str = 'job="gpufrag"'
    """Matchers of `up` for the targets that serve gpufrag, so that one that never answered is seen too."""
    job_labels: tuple[str, ...] = ("cluster", "namespace", "job", "job_name")
    """Labels that together name one training job. One that a scrape does not set is empty, and does no harm."""
    thresholds: Thresholds = Thresholds()
    timing: Timing = Timing()
    severity_label: str = "severity"
    severities: Mapping[str, str] = field(default_factory=dict)
    """What to write for info, warning and critical where other words are in use: `critical: page`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Extra labels on every alert."""
    metadata_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the PrometheusRule object; kube-prometheus-stack picks rules by `release`."""
    runbook_url: str = "https://github.com/gpufrag/gpufrag/blob/main/docs/runbooks"
    """Under which the page of an alert is found, as NAME.md."""
    off: tuple[str, ...] = ("GpuMemoryCacheFragmented",)
    """Alerts that are left out: by default the one that fires on healthy jobs."""

    def __post_init__(self) -> None:
        for where in ("selector", "target_selector"):
            limits.check_selector(getattr(self, where), where)
        limits.check_job_labels(self.job_labels)
        limits.check_extra_labels([self.severity_label], "severity_label", self.job_labels)
        limits.check_extra_labels(self.labels, "labels", (*self.job_labels, self.severity_label))
        yaml_record.check_keys(self.severities, SEVERITIES, "severities")
        limits.check_filled(self.severities, "severities")
        limits.check_filled(self.labels, "labels")
        limits.check_address(self.runbook_url)

    @property
    def by_job(self) -> str:
        """For `by (…)`: the labels that name one job."""
        return ", ".join(self.job_labels)

    def series(self, metric: str, *matchers: str) -> str:
        """`metric`, or what is recorded of ranks, with the configured selector and the given matchers."""
        return _selected(metric, self.selector.strip(" ,"), *matchers)

    def rule(self, record: str, *matchers: str) -> str:
        """What is recorded of jobs, or ALERTS: of the selector, what is about the labels that they have."""
        own = (matcher for label, matcher in limits.matchers(self.selector) if label in self.job_labels)
        return _selected(record, *own, *matchers)

    def runbook(self, alert: str) -> str:
        return f"{self.runbook_url.rstrip('/')}/{alert}.md"

    def severity(self, severity: str) -> str:
        return self.severities.get(severity, severity)


def _selected(metric: str, *matchers: str) -> str:
    inside = ", ".join(filter(None, matchers))
    return f"{metric}{{{inside}}}" if inside else metric


def load(path: Path) -> Config:
    """Raises Unavailable, BadInput or UsageError, each of which names the file."""
    return yaml_record.load(Config, path)


def duration(seconds: float) -> str:
    """As Prometheus writes it: the largest unit that divides it, `90s`, `5m`, `1h`."""
    milliseconds = round(seconds * 1000)
    for unit, scale in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % scale == 0:
            return f"{milliseconds // scale}{unit}"
    return f"{milliseconds}ms"


def number(value: float) -> str:
    """As PromQL reads it, without a needless `.0`."""
    return str(int(value)) if value == int(value) else repr(value)


def changed(config: Config, settings: Sequence[str]) -> Config:
    """`config` with settings such as `thresholds.stale=5m` or `off=[]` on top; values are YAML. Raises UsageError."""
    raw = json.loads(json.dumps(asdict(config)))
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r:.60} has no =: write KEY=VALUE, as in thresholds.fragmentation_ratio=6")
        _put(raw, path.split("."), _parsed(path, text))
    return yaml_record.read(Config, raw)


def _put(raw: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *above, last = path
    for depth, key in enumerate(above, 1):
        inner = raw.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{'.'.join(path[:depth])} is no mapping: nothing can be set inside it")
        raw = inner
    raw[last] = value


def _parsed(path: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"the value of {path} is no YAML: put it in quotes") from None
