"""Whether an alert is still true, asked of Prometheus just before a job is touched: minutes may have passed."""

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
from . import reasons
from .alerts import Alert
from .reasons import Skip
from .settings import PrometheusSettings

MAX_ANSWER = 1 << 20
SAMPLE = "gpufrag_sample_timestamp_seconds"
Query = Callable[[str], "float | None"]


class NoAnswer(Exception):
    """Prometheus could not be asked, or did not answer with a vector; the text says why."""


def check(alert: Alert, settings: PrometheusSettings, query: Query) -> Skip | None:
    """None: it fires now, and the job's newest sample is fresh; Prometheus' own clock tells."""
    chosen = {name: value for name in settings.labels if (value := alert.labels.get(name))}
    firing = {"alertname": alert.name, "alertstate": "firing", **chosen}
    try:
        if not query(f"count(ALERTS{matchers(firing)})"):
            return Skip(reasons.NOT_FIRING)
        age_s = query(f"time() - max(timestamp({SAMPLE}{matchers(chosen)}))")
    except NoAnswer as error:
        return Skip(reasons.UNCHECKED, str(error))
    if age_s is None or not age_s <= settings.max_sample_age:  # nor may it be no number
        return Skip(reasons.STALE, "there is none" if age_s is None else f"{age_s:.0f} s")
    return None


def matchers(labels: Mapping[str, str]) -> str:
    """`{name="value",…}`: whatever is in a value stays in it."""
    return f"{{{','.join(f'{name}={_quoted(value)}' for name, value in sorted(labels.items()))}}}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class Prometheus:
    """Its HTTP API. One query at a time, each with a bound on its time and on the answer's size."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Raises Unavailable for a `ca_file` or `bearer_file` that cannot be used."""
        self._settings = settings
        try:
            context = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else None
        except OSError as error:  # SSLError is one
            raise Unavailable(f"prometheus.ca_file: {error}; it is to hold certificates of authorities") from None
        self._token()
        self._open = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context)).open

    def __call__(self, query: str) -> float | None:
        """The value of the only series of an instant query, or None where there is no series. Raises NoAnswer."""
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
        """None where none is wanted. Raises Unavailable."""
        path = self._settings.bearer_file
        return None if path is None else read_token(path, "prometheus.bearer_file")


def read_token(path: Path, place: str) -> str:
    """What Prometheus is to be told. Raises Unavailable, which begins with the `place` where the file was named."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "not a token"
        raise Unavailable(f"{place}: {path}: {told}; it is to hold Prometheus' token") from None
    if not token or not token.isprintable():
        raise Unavailable(f"{place}: {path}: a token in one line belongs there")
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for the address that was configured, and no other."""

    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


def _read(answer: HTTPResponse, deadline_s: float) -> bytes:
    """All of it; the time-out of a socket bounds each wait, and not all of them together."""
    content = b""
    while chunk := answer.read1(64 << 10):
        content += chunk
        if len(content) > MAX_ANSWER or time.monotonic() > deadline_s:
            raise ValueError("the answer has no end")
    return content


def _value(answer: Any) -> float | None:
    data = answer["data"]
    if answer["status"] != "success" or data["resultType"] != "vector":
        raise ValueError("no vector")
    return float(data["result"][0]["value"][1]) if data["result"] else None


def checker(settings: PrometheusSettings) -> Callable[[Alert], Skip | None]:
    """What the worker calls; without an address nothing is asked. Raises Unavailable for a file that cannot be used."""
    if settings.url is None:
        if settings.bearer_file is not None:  # whoever named it will name the address too
            read_token(settings.bearer_file, "prometheus.bearer_file")
        return lambda alert: None
    prometheus = Prometheus(settings)
    return lambda alert: check(alert, settings, prometheus)
