"""The checks of Prometheus: rules, targets, labels, and where it sends alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import Unavailable
from ..metrics import names
from ..metrics.names import AlertName, Label
from ..mixin import rules
from ..mixin.config import Config
from ..web.client import Client, NotListening
from .checks import Check, Fail, Ok, Result, Unknown, Warn, some

MAX_AGE_S = 120.0
LOAD_RULES = "add deploy/prometheus/rules.yaml to rule_files, or apply the PrometheusRule"
KNOWN = f"present_over_time({names.BUILD_INFO}[30m])"
TARGETS = f"count({names.BUILD_INFO} and on (job, {Label.INSTANCE}) up == 1)"
DOWN = f"count(up == 0 and on (job, {Label.INSTANCE}) {KNOWN} or up{{{Config().target_selector}}} == 0)"
RANKS = f"count({names.SAMPLE_TIMESTAMP})"
AGE = f"time() - max({names.SAMPLE_TIMESTAMP})"
WITH_POD = f'count({names.BUILD_INFO}{{{Label.NAMESPACE}!="", {Label.POD}!=""}})'
WITH_JOB = f'count({names.BUILD_INFO}{{{Label.JOB_NAME}!=""}})'


@dataclass(frozen=True)
class Prometheus:
    client: Client

    @property
    def url(self) -> str:
        return self.client.base_url

    def data(self, path: str, query: str = "") -> Any:
        """Return `data` of an answer of the API. Raises Unavailable."""
        path = f"/api/v1/{path}"
        answer = (self.client.post_form(path, {"query": query}) if query else self.client.get(path)).json()
        if not isinstance(answer, dict) or answer.get("status") != "success" or "data" not in answer:
            raise Unavailable(f"{self.url}{path} does not answer like Prometheus; check the address")
        return answer["data"]

    def value(self, query: str) -> float:
        """Return the value of an instant query with one series; 0 if there is none. Raises Unavailable."""
        series = self.data("query", query)["result"]
        return float(series[0]["value"][1]) if series else 0.0


def reachable(prometheus: Prometheus) -> Result:
    return Ok(f"{prometheus.url}, version {prometheus.data('status/buildinfo').get('version', 'unknown')}")


def loaded_rules(prometheus: Prometheus) -> Result:
    expected = {rule.get("alert") or rule["record"] for group in rules.groups(Config()) for rule in group["rules"]}
    every = [rule for group in prometheus.data("rules")["groups"] for rule in group["rules"]]
    loaded = [rule for rule in every if rule["name"] in expected]
    found = {rule["name"] for rule in loaded}
    if AlertName.FRAGMENTED not in found:
        return Fail(f"{prometheus.url} has no alert {AlertName.FRAGMENTED}, so nothing restarts jobs; {LOAD_RULES}")
    broken = {rule["name"]: rule.get("lastError") or "" for rule in loaded if rule.get("health") == "err"}
    if broken:
        return Fail(f"cannot evaluate {some(broken)}: {next(iter(broken.values()))[:200]}; see its page Rules")
    if expected - found:
        return Warn(f"not loaded: {some(expected - found)}; from an older release, or turned off? {LOAD_RULES}")
    return Ok(f"all {len(expected)} rules are loaded and evaluated")


def targets(prometheus: Prometheus) -> Result:
    up, down = prometheus.value(TARGETS), prometheus.value(DOWN)
    if down:
        return Fail(f"{down:.0f} sidecar(s) cannot be scraped ({up:.0f} can); see the page Targets of {prometheus.url}")
    if not up:
        return Fail(f"{prometheus.url} scrapes no sidecar; see its page Targets")
    ranks = prometheus.value(RANKS)
    if not ranks:
        return Warn(f"{up:.0f} sidecar(s) are scraped but have no rank; is a job with the agent running?")
    age_s = prometheus.value(AGE)
    if age_s > MAX_AGE_S:
        return Fail(f"the newest sample of {ranks:.0f} rank(s) is {age_s:.0f} s old; are the jobs stopped?")
    return Ok(f"{up:.0f} sidecar(s), {ranks:.0f} rank(s), newest sample {max(age_s, 0):.0f} s old")


def labels(prometheus: Prometheus) -> Result:
    """The restarter finds the job by these labels."""
    pods, jobs = prometheus.value(WITH_POD), prometheus.value(WITH_JOB)
    if not pods and not jobs:
        return Warn(
            f"no target has the labels {Label.NAMESPACE} and {Label.POD}, or {Label.JOB_NAME}: alerts do not identify "
            "a job; see prometheus.md"
        )
    return Ok(f"{pods:.0f} target(s) with a pod, {jobs:.0f} with a job name")


def alertmanagers(prometheus: Prometheus) -> Result:
    """Prometheus also lists an Alertmanager that is down, so each is asked."""
    active = [one["url"] for one in prometheus.data("alertmanagers")["activeAlertmanagers"]]
    if not active:
        return Fail(f"{prometheus.url} has no Alertmanager, so no alert is delivered; set `alerting` in its config")
    down, unreachable = [], []
    for url in active:
        address = urlsplit(url)
        base = f"{address.scheme}://{address.netloc}"
        try:
            Client(base).get("/-/healthy")
        except NotListening:
            down.append(base)
        except Unavailable as error:
            unreachable.append(str(error))
    if len(down) == len(active):
        return Fail(f"no Alertmanager answers: {some(down)}; no alert is delivered")
    if down:
        return Warn(f"{some(down)}: no answer")
    if unreachable:
        return Unknown(f"cannot check whether Alertmanager runs: {unreachable[0]}; run doctor where it is reachable")
    return Ok(f"sends alerts to {some(active)}")


CHECKS: tuple[Check[Prometheus], ...] = (
    Check("reachable", "does Prometheus answer", reachable, gate=True),
    Check("rules", "are the rules loaded and evaluated", loaded_rules),
    Check("targets", "are sidecars scraped, with ranks that have recent samples", targets),
    Check("labels", "do targets have the pod or job name that a restart needs", labels),
    Check("alertmanagers", "is there a running Alertmanager", alertmanagers),
)
