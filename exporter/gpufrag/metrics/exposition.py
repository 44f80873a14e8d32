"""The answer to a scrape: a fleet as metric families, written in the format that the scraper prefers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client import exposition as text
from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from ..model.fragmentation import SIZE_BOUNDS
from .places import Labels, clean, scene_of
from .table import COUNTER, GAUGE, HISTOGRAM, INFO, TABLE, Metric, Sizes
from .view import Fleet

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_VERSIONS = ("", "0.0.1", "1.0.0")
_CONSTRUCTORS: dict[str, Callable[..., Family]] = {
    GAUGE: GaugeMetricFamily,
    COUNTER: CounterMetricFamily,
    INFO: InfoMetricFamily,
    HISTOGRAM: GaugeHistogramMetricFamily,
}
_BUCKETS = (*map(floatToGoString, SIZE_BOUNDS), "+Inf")
_MAX_VALUE = 1 << 63


class FleetCollector(Collector):
    """All metrics as a prometheus_client collector, for your own registry. Calls `read` at each scrape."""

    def __init__(self, read: Callable[[], Fleet], *, detail: bool = True) -> None:
        self._read = read
        self._detail = detail

    def collect(self) -> Iterable[Family]:
        return families(self._read(), detail=self._detail)

    def describe(self) -> Iterable[Family]:
        """Every family of TABLE without samples, so that a registry can check names before the first scrape."""
        return map(_family, TABLE)


def render(fleet: Fleet, accept: str = "", *, detail: bool = True) -> tuple[str, bytes]:
    """Return (content type, body) for the Accept header `accept`: OpenMetrics if preferred, else text 0.0.4."""
    return write(FleetCollector(lambda: fleet, detail=detail), accept)


def write(collector: Collector, accept: str = "") -> tuple[str, bytes]:
    """Like render, for any collector."""
    content_type = negotiate(accept)
    return content_type, _WRITERS[content_type](collector)


def negotiate(accept: str) -> str:
    """Return the content type for an Accept header; text 0.0.4 if it names no format that gpufrag has."""
    quality = {OPENMETRICS: 0.0, TEXT: 0.0}
    for part in accept.lower().split(","):
        media, *rest = (token.strip() for token in part.split(";"))
        parameters = {key.strip(): value.strip(' "') for key, _, value in (token.partition("=") for token in rest)}
        try:
            wanted = float(parameters.get("q", "1"))
        except ValueError:
            continue
        if media == "text/plain":
            quality[TEXT] = max(quality[TEXT], wanted)
        elif media == "application/openmetrics-text" and parameters.get("version", "") in _OPENMETRICS_VERSIONS:
            quality[OPENMETRICS] = max(quality[OPENMETRICS], wanted)
    return OPENMETRICS if quality[OPENMETRICS] > 0 and quality[OPENMETRICS] >= quality[TEXT] else TEXT


def families(fleet: Fleet, *, detail: bool = True) -> Iterator[Family]:
    """Yield the families that have a series, in the order of TABLE; `detail=False` leaves out rows marked detail.

    Values that no size, time or count can have are left out.
    """
    every_rank = scene_of(fleet)
    living = every_rank.living()
    for row in TABLE:
        if detail or not row.detail:
            scene = every_rank if row.shown_after_exit else living
            family = _family(row)
            family.samples.extend(_SAMPLES.get(row.kind, _numbers)(row, scene.places(row.source)))
            if family.samples:
                yield family


def _family(row: Metric[Any]) -> Family:
    stem = row.name.removesuffix("_info") if row.kind == INFO else row.name
    return _CONSTRUCTORS[row.kind](stem, row.help, **({"unit": row.unit} if row.unit else {}))


def _numbers(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    name, read, added = row.name, row.read, row.adds
    for labels, item in places:
        value: Any = read(item)
        if added:
            for key, one in sorted({clean(key): one for key, one in value.items()}.items()):
                if _possible(one):
                    yield Sample(name, {**labels, added[0]: key}, one)
        elif _possible(value):
            yield Sample(name, labels, value)


def _info(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    for labels, item in places:
        facts: Any = row.read(item)
        if facts is not None:
            yield Sample(row.name, labels | {k: clean(v) for k, v in facts.items() if v is not None}, 1)


def _buckets(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    for labels, item in places:
        sizes = row.read(item)
        if isinstance(sizes, Sizes) and _possible(sizes.total) and all(map(_possible, sizes.counts)):
            cumulative = list(accumulate(sizes.counts))
            for bound, count in zip(_BUCKETS, cumulative):
                yield Sample(f"{row.name}_bucket", {**labels, "le": bound}, count)
            yield Sample(f"{row.name}_gcount", labels, cumulative[-1])
            yield Sample(f"{row.name}_gsum", labels, sizes.total)


_SAMPLES = {INFO: _info, HISTOGRAM: _buckets}


def _possible(value: float | None) -> bool:
    return value is not None and 0 <= value < _MAX_VALUE  # false for NaN


def _writer(generate: Callable[..., bytes]) -> Callable[[Collector], bytes]:
    """prometheus_client >= 0.22 escapes names character by character unless UTF-8 is allowed; our names are ASCII."""
    if "escaping" in inspect.signature(generate).parameters:
        return partial(generate, escaping="allow-utf-8")
    return generate


_WRITERS = {TEXT: _writer(text.generate_latest), OPENMETRICS: _writer(openmetrics.generate_latest)}
