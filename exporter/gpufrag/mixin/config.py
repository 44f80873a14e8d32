"""The settings of rules and dashboards: selectors, thresholds, times, labels. One Config builds all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from ..config import reader
from ..config.reader import check_keys
from ..config.schema import DAY, about, between, in_range, seconds, size
from ..errors import UsageError
from ..metrics.names import AlertName, Label

SEVERITIES = ("info", "warning", "critical")
YEAR = 365 * DAY
MILLISECOND = 0.001  # Prometheus counts in milliseconds

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_TEST = rf"\s*(?:=~|!~|!=|=)\s*{_VALUE}"
_MATCHER = rf"{_LABEL.pattern}{_TEST}"
_NAMED_MATCHER = re.compile(rf"({_LABEL.pattern}){_TEST}")
_SELECTOR = re.compile(rf"(?:\s*{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*,?\s*)?")
_RANK_LABELS = (Label.RANK, Label.DEVICE, Label.PROCESS, Label.FRAMEWORK, Label.POOL, Label.AT)
_RESERVED = ("alertname", Label.ACTION)


def parse_matchers(selector: str) -> list[tuple[str, str]]:
    """Return (label, matcher) for each matcher of a selector."""
    return [(found[1], found[0]) for found in _NAMED_MATCHER.finditer(selector)]


def _check_selector(selector: str, where: str) -> None:
    """A backtick would end the query that an alert's text contains."""
    if not _SELECTOR.fullmatch(selector) or "`" in selector:
        example = 'cluster="a",namespace=~"ml-.*"'
        raise UsageError(f"{where} must be a list of matchers without braces, for example {example}")
    if any(label == "__name__" for label, _ in parse_matchers(selector)):
        raise UsageError(f"{where} must not select __name__: every rule names its own metric")


def _check_job_labels(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        _check_label_name(name)
        if name in seen:
            raise UsageError(f"job_labels: {name} is listed twice")
        if name in (*_RANK_LABELS, *_RESERVED) or name.startswith("__"):
            raise UsageError(f"job_labels: {name} is not a target label, so it cannot distinguish jobs")
        seen.add(name)
    if not seen:
        raise UsageError("job_labels is empty: name at least one label that distinguishes jobs")


def _check_extra_labels(names: Iterable[str], where: str, taken: Iterable[str]) -> None:
    """An extra label that replaces one of the alert's own could send restarts to the wrong job."""
    for name in names:
        _check_label_name(name)
        if name in (*taken, *_RESERVED) or name.startswith("__"):
            raise UsageError(f"{where}: {name} is already a label of the alerts; choose another name")


def _check_not_empty(texts: Mapping[str, str], where: str) -> None:
    for name, text in texts.items():
        if not text:
            raise UsageError(f"{where}.{name} is empty; Prometheus drops empty labels")


def _check_label_name(name: str) -> None:
    if not _LABEL.fullmatch(name):
        raise UsageError(f"{name!r:.40} is not a label name: use letters, digits and _, and start with a letter or _")


@dataclass(frozen=True)
class Thresholds:
    """Limits beyond which alerts fire or dashboards warn."""

    fragmentation_ratio: Annotated[
        float,
        between(
            1,
            1000,
            "Highest free_total / largest_allocatable. At 4, the largest request is a quarter of the free memory.",
        ),
    ] = 4.0
    cache_ratio: Annotated[
        float, between(1, 1000, "Highest free_cached / largest_free_block. Healthy jobs reach 24.")
    ] = 4.0
    free_share: Annotated[
        float, between(0, 1, "Lowest free_total / limit. Below it, memory counts as full, not as fragmented.")
    ] = 0.05
    margin_share: Annotated[
        float, between(0, 1, "Lowest margin of the last analysed step, as a share of the limit.")
    ] = 0.05
    margin_horizon: Annotated[
        float, seconds(MILLISECOND, YEAR, "Alert if a falling margin reaches 0 within this time.")
    ] = 3600.0
    unused_tune: Annotated[
        float, between(0, 1, "Unused share of reserved memory above which other allocator settings can help.")
    ] = 0.2
    unused_act: Annotated[float, between(0, 1, "Unused share of reserved memory above which memory is wasted.")] = 0.4
    retries_per_minute: Annotated[float, in_range(0, 1000, "Most cache flushes per minute. Each stalls the job.")] = 1.0
    foreign_bytes: Annotated[
        int, size(1, 1 << 50, "Most memory that processes without an agent may hold on a device.")
    ] = 1 << 30
    stale: Annotated[float, seconds(MILLISECOND, YEAR, "Highest age of a sample. An agent writes one per second.")] = (
        120.0
    )
    agent_share: Annotated[float, between(0, 1, "Highest share of time for which the agent pauses its process.")] = 0.01
    leak_horizon: Annotated[float, seconds(MILLISECOND, YEAR, "Alert if a leak fills the memory within this time.")] = (
        DAY
    )


@dataclass(frozen=True)
class Timing:
    """How often rules run and how long a condition must hold."""

    interval: Annotated[
        float, seconds(MILLISECOND, YEAR, "Time between evaluations. It is doubled for rules that no alert uses.")
    ] = 30.0
    window: Annotated[
        float,
        seconds(MILLISECOND, YEAR, "How far back alerts look. Must contain two scrapes or more."),
    ] = 120.0
    rate_window: Annotated[float, seconds(MILLISECOND, YEAR, "Window of rates. Must contain four scrapes or more.")] = (
        300.0
    )
    hold: Annotated[
        float,
        seconds(
            MILLISECOND,
            YEAR,
            "`for` of most alerts; some use two or three times as long. Choose more than a job needs to start.",
        ),
    ] = 300.0
    keep_firing: Annotated[
        float,
        seconds(
            MILLISECOND, YEAR, "`keep_firing_for` of GpuMemoryFragmented, so that a gap in the data does not end it."
        ),
    ] = 300.0
    margin_history: Annotated[
        float,
        seconds(
            1,
            YEAR,
            "GpuMemoryMarginFalling requires that the margin falls over this time, and over the second half of it.",
        ),
    ] = 1800.0
    event: Annotated[float, seconds(MILLISECOND, YEAR, "How long GpuMemoryOutOfMemory fires after an error.")] = 600.0
    memory: Annotated[
        float, seconds(MILLISECOND, YEAR, "How long ranks and targets that disappeared count as missing.")
    ] = 1800.0


@dataclass(frozen=True)
class Config:
    """All settings of `gpufrag mixin build`."""

    selector: Annotated[
        str,
        about(
            'Matchers added to every gpufrag metric, for example `cluster="a",namespace=~"ml-.*"`. If one'
            " Prometheus loads rule files with different selectors, add the label that differs to job_labels."
        ),
    ] = ""
    target_selector: Annotated[str, about("Matchers that select the sidecars among the `up` series.")] = 'job="gpufrag"'
    job_labels: Annotated[
        tuple[str, ...],
        about("Target labels that together identify a training job. Your targets need not have all of them."),
    ] = ("cluster", Label.NAMESPACE, "job", Label.JOB_NAME)
    thresholds: Thresholds = Thresholds()
    timing: Timing = Timing()
    severity_label: Annotated[str, about("Name of the severity label.")] = "severity"
    severities: Annotated[
        Mapping[str, str], about("Other names for info, warning and critical, for example `{critical: page}`.")
    ] = field(default_factory=dict)
    labels: Annotated[Mapping[str, str], about("Extra labels on every alert.")] = field(default_factory=dict)
    metadata_labels: Annotated[
        Mapping[str, str],
        about("Labels of the PrometheusRule object; kube-prometheus-stack selects rules by `release`."),
    ] = field(default_factory=dict)
    runbook_url: Annotated[
        str,
        about(
            "Address of the runbooks, with `{name}` for the alert's name, for example `https://wiki/gpu/{name}.md`."
            " Without `{name}`, alerts link to ADDRESS/NAME. If empty, they link to the sidecar's /runbooks/NAME."
        ),
    ] = ""
    off: Annotated[
        tuple[str, ...], about("Alerts to leave out. GpuMemoryCacheFragmented also fires on healthy jobs.")
    ] = (AlertName.CACHE_FRAGMENTED,)

    def __post_init__(self) -> None:
        for where in ("selector", "target_selector"):
            _check_selector(getattr(self, where), where)
        _check_job_labels(self.job_labels)
        _check_extra_labels([self.severity_label], "severity_label", self.job_labels)
        _check_extra_labels(self.labels, "labels", (*self.job_labels, self.severity_label))
        check_keys(self.severities, SEVERITIES, "severities")
        _check_not_empty(self.severities, "severities")
        _check_not_empty(self.labels, "labels")
        if set("{} ") & set(self.runbook_url.replace("{name}", "")):
            raise UsageError("runbook_url must not contain spaces, or braces except in {name}")

    @property
    def by_job(self) -> str:
        """The labels of a job, for `by (...)`."""
        return ", ".join(self.job_labels)

    def series(self, metric: str, *matchers: str) -> str:
        """Return a metric or a `rank:` rule with the configured selector and the given matchers."""
        return _selected(metric, self.selector.strip(" ,"), *matchers)

    def rule(self, record: str, *matchers: str) -> str:
        """Return a `job:` rule or ALERTS with the given matchers and those of the selector that match job labels."""
        own = (matcher for label, matcher in parse_matchers(self.selector) if label in self.job_labels)
        return _selected(record, *own, *matchers)

    def runbook(self, alert: str) -> str | None:
        """Return the address of an alert's runbook, or None if runbook_url is not set."""
        if "{name}" in self.runbook_url:
            return self.runbook_url.replace("{name}", alert)
        return f"{self.runbook_url.rstrip('/')}/{alert}" if self.runbook_url else None

    def severity(self, severity: str) -> str:
        return self.severities.get(severity, severity)


def _selected(metric: str, *matchers: str) -> str:
    inside = ", ".join(filter(None, matchers))
    return f"{metric}{{{inside}}}" if inside else metric


def load(path: Path | None, settings: Sequence[str] = ()) -> Config:
    """Return the config file's settings, if any, with settings such as `thresholds.stale=5m` or `off=[]` on top.

    The values of `settings` are YAML. Raises Unavailable, BadInput or UsageError.
    """
    return reader.load(Config, path, dict(map(_setting, settings)))


def duration(seconds: float) -> str:
    """Return a duration as Prometheus writes it, in the largest unit that divides it: `90s`, `5m`, `1h`."""
    milliseconds = round(seconds * 1000)
    for unit, scale in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % scale == 0:
            return f"{milliseconds // scale}{unit}"
    return f"{milliseconds}ms"


def number(value: float) -> str:
    """Return a number for PromQL, without a trailing `.0`."""
    return str(int(value)) if value == int(value) else repr(value)


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text!r:.60}: write KEY=VALUE, for example thresholds.fragmentation_ratio=6")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise UsageError(f"--set {text!r:.60}: the value is not valid YAML; put it in quotes") from None
