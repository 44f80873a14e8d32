"""The answer to a scrape, in the format that the scraper asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from prometheus_client import exposition as text
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from .families import empty_families, families
from .view import Fleet

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_VERSIONS = ("", "0.0.1", "1.0.0")


class FleetCollector(Collector):
    """All metrics as a collector of prometheus_client, for a registry of one's own. Reads the fleet at each scrape."""

    def __init__(self, read: Callable[[], Fleet], *, detail: bool = True) -> None:
        self._read = read
        self._detail = detail

    def collect(self) -> Iterable[Family]:
        return families(self._read(), detail=self._detail)

    def describe(self) -> Iterable[Family]:
        return empty_families()


def render(fleet: Fleet, accept: str = "", *, detail: bool = True) -> tuple[str, bytes]:
    """(content type, body) for the Accept header `accept`: OpenMetrics where it is preferred, else text 0.0.4."""
    return write(FleetCollector(lambda: fleet, detail=detail), accept)


def write(collector: Collector, accept: str = "") -> tuple[str, bytes]:
    """The same of any collector."""
    content_type = negotiate(accept)
    return content_type, _WRITERS[content_type](collector)


def negotiate(accept: str) -> str:
    """The content type for an Accept header. Whoever names no format that we have gets text 0.0.4."""
    offers = [_offer(part) for part in accept.lower().split(",")]
    exact = max(
        (o.quality for o in offers if o.media == "application/openmetrics-text" and o.version in _OPENMETRICS_VERSIONS),
        default=0.0,
    )
    plain = max((o.quality for o in offers if o.media == "text/plain"), default=0.0)
    return OPENMETRICS if exact > 0 and exact >= plain else TEXT


class _Offer(NamedTuple):
    media: str
    version: str
    quality: float


def _offer(part: str) -> _Offer:
    media, *parameters = (token.strip() for token in part.split(";"))
    values = {key.strip(): value.strip(' "') for key, _, value in (token.partition("=") for token in parameters)}
    return _Offer(media, values.get("version", ""), _quality(values.get("q", "1")))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _writer(generate: Callable[..., bytes]) -> Callable[[Collector], bytes]:
    """prometheus_client >= 0.22 escapes names letter by letter unless told that UTF-8 may stay; ours are plain."""
    if "escaping" in inspect.signature(generate).parameters:
        return partial(generate, escaping="allow-utf-8")
    return generate


_WRITERS = {TEXT: _writer(text.generate_latest), OPENMETRICS: _writer(openmetrics.generate_latest)}
