"""Whether an alert still fires, asked of Prometheus just before a job is restarted: minutes may have passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import Unavailable
from ..metrics import names
from ..web.client import Client, read_token
from . import reasons
from .alerts import Alert
from .policy import ACTION, RESTART
from .reasons import Refused
from .settings import PrometheusSettings

MAX_ANSWER = 1 << 20
Query = Callable[[str], "float | None"]
SeriesLabels = Callable[[Alert], Mapping[str, str]]


class NoAnswer(Exception):
    """Prometheus did not answer with a vector; the text has the reason."""


def check(alert: Alert, settings: PrometheusSettings, query: Query, series_labels: SeriesLabels) -> Refused | None:
    """None: this very alert fires now and asks for a restart, and the job's newest sample is fresh.

    The webhook is not trusted: a label that the alert lacks must be absent from the series too, or the alert of another
    job would match, and the job's own series must exist. Ages are by Prometheus' clock.
    """
    labels = {name: alert.labels.get(name, "") for name in settings.labels}
    firing = {**labels, "alertname": alert.name, "alertstate": "firing", ACTION: RESTART}
    own = {name: value for name, value in series_labels(alert).items() if name in settings.labels}
    sampled = {name: value for name, value in {**labels, **own}.items() if value}
    try:
        if not query(f"count(ALERTS{matchers(firing)})"):
            return Refused(reasons.NOT_FIRING)
        age_s = query(f"time() - max(timestamp({names.SAMPLE_TIMESTAMP}{matchers(sampled)}))")
    except NoAnswer as error:
        return Refused(reasons.PROMETHEUS_UNAVAILABLE, str(error))
    if age_s is None or not age_s <= settings.max_sample_age:  # it may be NaN
        return Refused(reasons.STALE_SAMPLE, "there is none" if age_s is None else f"{age_s:.0f} s old")
    return None


def matchers(labels: Mapping[str, str]) -> str:
    """Return `{name="value",…}` with escaped values."""
    return f"{{{','.join(f'{name}={_quoted(value)}' for name, value in sorted(labels.items()))}}}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class Prometheus:
    """Queries its HTTP API, bounded in time and in the size of the answer."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Raises Unavailable if `ca_file` or `bearer_file` cannot be used."""
        self._timeout_s = settings.timeout
        self._client = Client(settings.url or "", settings.timeout, MAX_ANSWER, settings.bearer_file, settings.ca_file)
        try:
            self._client.check()
        except Unavailable as error:
            raise Unavailable(f"prometheus: {error}") from None

    def __call__(self, query: str) -> float | None:
        """Return the value of an instant query's only series; None: there is no series. Raises NoAnswer."""
        fields = {"query": query, "timeout": f"{self._timeout_s:g}"}
        try:
            answer = self._client.post_form("/api/v1/query", fields).json()
            data = answer["data"]
            if answer["status"] != "success" or data["resultType"] != "vector":
                raise NoAnswer("Prometheus did not answer with a vector")
            return float(data["result"][0]["value"][1]) if data["result"] else None
        except Unavailable as error:
            raise NoAnswer(str(error)) from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise NoAnswer(f"Prometheus' answer is not usable: {type(error).__name__}: {error}") from None


def checker(settings: PrometheusSettings, series_labels: SeriesLabels) -> Callable[[Alert], Refused | None]:
    """Return what the worker calls; without a URL it confirms every alert. Raises Unavailable for an unusable file."""
    if settings.url is None:
        if settings.bearer_file is not None:
            read_token(settings.bearer_file)
        return lambda alert: None
    prometheus = Prometheus(settings)
    return lambda alert: check(alert, settings, prometheus, series_labels)
