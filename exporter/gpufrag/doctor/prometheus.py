"""The checks of Prometheus: our rules, our series, and whom it tells of alerts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import Unavailable
from ..mixin import rules
from ..mixin.config import Config
from ..web.client import Client
from .results import Check, Fail, Ok, Result, Warn, some

TRIGGER = "GpuMemoryFragmented"
MAX_AGE_S = 120.0
LOAD_THEM = "add deploy/prometheus/rules.yaml to rule_files, or apply the PrometheusRule"


@dataclass(frozen=True)
class Prometheus:
    """`url` without a slash at its end."""

    url: str
    bearer_file: Path | None = None

    def get(self, path: str) -> Any:
        """`data` of its answer. Raises Unavailable."""
        whole = f"{self.url}/api/v1/{path}"
        answer = Client(self.url, bearer_file=self.bearer_file).get(f"/api/v1/{path}").json()
        if not isinstance(answer, dict) or answer.get("status") != "success" or "data" not in answer:
            raise Unavailable(f"{whole} answers as no Prometheus does; is it the right address?")
        return answer["data"]

    def value(self, query: str) -> float | None:
        """Of the only series of an instant query; None where there is none."""
        series = self.get(f"query?query={quote(query)}")["result"]
        return float(series[0]["value"][1]) if series else None


def _rules(prometheus: Prometheus) -> Result:
    loaded = _loaded(prometheus)
    if TRIGGER not in {rule["name"] for rule in loaded}:
        return Fail(f"{prometheus.url} has no alert {TRIGGER}: nothing asks for a restart; {LOAD_THEM}")
    sick = {rule["name"]: rule.get("lastError") or "" for rule in loaded if rule.get("health") == "err"}
    if sick:
        return Fail(f"{some(sick)} cannot be evaluated: {next(iter(sick.values()))[:200]}; see its page of rules")
    missing = _expected() - {rule["name"] for rule in loaded}
    if missing:
        return Warn(f"not loaded: {some(missing)}; an older release's rules, or switched off? {LOAD_THEM}")
    return Ok(f"all {len(_expected())} rules are loaded and evaluated")


def _loaded(prometheus: Prometheus) -> list[Any]:
    groups = prometheus.get("rules")["groups"]
    return [rule for group in groups for rule in group["rules"] if rule["name"] in _expected()]


def _expected() -> set[str]:
    """Alerts and recorded series of the rules as they are shipped."""
    return {rule.get("alert") or rule["record"] for group in rules.groups(Config()) for rule in group["rules"]}


def _series(prometheus: Prometheus) -> Result:
    targets = prometheus.value("count(gpufrag_up)")
    if not targets:
        return Fail(f"{prometheus.url} has no gpufrag_up: it scrapes no sidecar; see its page of targets")
    ranks = prometheus.value("count(gpufrag_sample_timestamp_seconds)")
    if not ranks:
        return Warn(f"{targets:.0f} sidecar(s) are scraped, and none has a rank: does a job with an agent run?")
    age_s = prometheus.value("time() - max(gpufrag_sample_timestamp_seconds)") or 0.0
    if age_s > MAX_AGE_S:
        return Fail(f"the newest sample of {ranks:.0f} rank(s) is {age_s:.0f} s old: are the jobs stopped?")
    return Ok(f"{targets:.0f} sidecar(s), {ranks:.0f} rank(s), the newest sample {max(age_s, 0):.0f} s old")


def _labels(prometheus: Prometheus) -> Result:
    """The restarter finds a job by them."""
    pods = prometheus.value('count(gpufrag_up{namespace!="", pod!=""})')
    jobs = prometheus.value('count(gpufrag_up{job_name!=""})')
    if not pods and not jobs:
        return Warn("no series has the labels namespace and pod, or job_name: an alert names no job; see prometheus.md")
    return Ok(f"{pods or 0:.0f} target(s) name their pod, {jobs or 0:.0f} their job")


def _alertmanagers(prometheus: Prometheus) -> Result:
    active = prometheus.get("alertmanagers")["activeAlertmanagers"]
    if not active:
        return Fail(f"{prometheus.url} knows no Alertmanager: alerts reach nobody; see `alerting` in its config")
    return Ok(f"tells {some(one['url'] for one in active)}")


CHECKS: tuple[Check[Prometheus], ...] = (
    Check("rules", "are our rules loaded, and can they be evaluated", _rules),
    Check("series", "are sidecars scraped, with ranks whose samples are fresh", _series),
    Check("labels", "do series name the pod or the job that a restart is for", _labels),
    Check("alertmanagers", "is there one to tell", _alertmanagers),
)
