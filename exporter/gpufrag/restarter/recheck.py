"""Whether an alert still fires, asked of Prometheus just before a job is restarted: minutes may have passed."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from ..errors import Unavailable
from ..metrics import names
from . import reasons
from .alerts import Alert
from .policy import ACTION, RESTART
from .reasons import Refused
from .settings import PrometheusSettings

MAX_ANSWER = 1 << 20
Query = Callable[[str], "float | None"]
SeriesLabels = Callable[[Alert], Mapping[str, str]]


class NoAnswer(Exception):
    """Prometheus did not answer with a vector; the text says why."""


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
        self._settings = settings
        try:
            context = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else None
        except OSError as error:  # SSLError is one
            raise Unavailable(f"prometheus.ca_file: cannot read certificates: {error}") from None
        self._token()
        self._open = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context)).open

    def __call__(self, query: str) -> float | None:
        """Return the value of an instant query's only series; None: there is no series. Raises NoAnswer."""
        try:
            deadline = time.monotonic() + self._settings.timeout
            with self._open(self._request(query), timeout=self._settings.timeout) as answer:
                return _value(json.loads(_read(answer, deadline)))
        except urllib.error.HTTPError as error:
            with error:
                raise NoAnswer(f"Prometheus answered {error.code}") from None
        except Unavailable as error:
            raise NoAnswer(str(error)) from None
        except (OSError, HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from None

    def _request(self, query: str) -> urllib.request.Request:
        url = f"{(self._settings.url or '').rstrip('/')}/api/v1/query"
        body = urllib.parse.urlencode({"query": query, "timeout": f"{self._settings.timeout:g}"}).encode()
        request = urllib.request.Request(url, body, method="POST")
        if token := self._token():
            request.add_header("Authorization", f"Bearer {token}")
        return request

    def _token(self) -> str | None:
        path = self._settings.bearer_file
        return None if path is None else read_token(path, "prometheus.bearer_file")


def read_token(path: Path, place: str) -> str:
    """Return the token in a file. Raises Unavailable, which begins with `place`, the setting that names the file."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"{place}: {path}: {getattr(error, 'strerror', None) or 'not a token'}") from None
    if not token or not token.isprintable():
        raise Unavailable(f"{place}: {path} does not contain a token in one line")
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is only for the configured address."""

    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


def _read(answer: HTTPResponse, deadline_s: float) -> bytes:
    """A socket's timeout bounds each wait, not all of them together."""
    content = b""
    while chunk := answer.read1(64 << 10):
        content += chunk
        if len(content) > MAX_ANSWER or time.monotonic() > deadline_s:
            raise ValueError("the answer is too long or too slow")
    return content


def _value(answer: Any) -> float | None:
    data = answer["data"]
    if answer["status"] != "success" or data["resultType"] != "vector":
        raise ValueError("no vector")
    return float(data["result"][0]["value"][1]) if data["result"] else None


def checker(settings: PrometheusSettings, series_labels: SeriesLabels) -> Callable[[Alert], Refused | None]:
    """Return what the worker calls; without a URL it confirms every alert. Raises Unavailable for an unusable file."""
    if settings.url is None:
        if settings.bearer_file is not None:
            read_token(settings.bearer_file, "prometheus.bearer_file")
        return lambda alert: None
    prometheus = Prometheus(settings)
    return lambda alert: check(alert, settings, prometheus, series_labels)
