"""From a fleet to the metric families of prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from ..model.fragmentation import SIZE_BOUNDS
from .identity import Labels, clean
from .row import COUNTER, GAUGE, HISTOGRAM, INFO, Metric, Sizes
from .sources import scene_of
from .table import TABLE
from .view import Fleet

_CONSTRUCTORS: dict[str, Callable[..., Family]] = {
    GAUGE: GaugeMetricFamily,
    COUNTER: CounterMetricFamily,
    INFO: InfoMetricFamily,
    HISTOGRAM: GaugeHistogramMetricFamily,
}
_SUFFIXES = {GAUGE: "", COUNTER: "_total", INFO: "_info"}
_BUCKETS = (*map(floatToGoString, SIZE_BOUNDS), "+Inf")
_CEILING = 1 << 63


def families(fleet: Fleet, *, detail: bool = True) -> Iterator[Family]:
    """The families that have a series, in the order of TABLE; without `detail`, only of rows that are none.

    A figure that no memory or clock can have is absent.
    """
    everyone = scene_of(fleet)
    living = everyone.living()
    for row in TABLE:
        if detail or not row.detail:
            scene = everyone if row.shown_of_the_dead else living
            family = _family(row)
            family.samples.extend(_samples(row, scene.places(row.source)))
            if family.samples:
                yield family


def empty_families() -> Iterator[Family]:
    """Every family of TABLE without a series: what a registry wants to know before it accepts a collector."""
    return map(_family, TABLE)


def _family(row: Metric[Any]) -> Family:
    stem = row.name.removesuffix("_info") if row.kind == INFO else row.name
    return (
        _CONSTRUCTORS[row.kind](stem, row.help, unit=row.unit) if row.unit else _CONSTRUCTORS[row.kind](stem, row.help)
    )


def _samples(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    if row.kind == HISTOGRAM:
        return _buckets(row, places)
    if row.kind == INFO:
        return _facts(row, places)
    if row.adds:
        return _split(row, places)
    return _numbers(row, places)


def _numbers(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    name, read = row.name, row.read
    for labels, item in places:
        value: Any = read(item)
        if _sound(value):
            yield Sample(name, labels, value)


def _split(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    (label,) = row.adds
    for labels, item in places:
        found: Any = row.read(item)
        for key, value in sorted({clean(key): value for key, value in found.items()}.items()):
            if _sound(value):
                yield Sample(row.name, {**labels, label: key}, value)


def _facts(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    for labels, item in places:
        facts: Any = row.read(item)
        if facts is not None:
            known = {label: clean(value) for label, value in facts.items() if value is not None}
            yield Sample(row.name, labels | known, 1)


def _buckets(row: Metric[Any], places: list[tuple[Labels, Any]]) -> Iterator[Sample]:
    for labels, item in places:
        sizes = row.read(item)
        if isinstance(sizes, Sizes) and _sound(sizes.total) and all(map(_sound, sizes.counts)):
            cumulative = list(accumulate(sizes.counts))
            for bound, count in zip(_BUCKETS, cumulative):
                yield Sample(f"{row.name}_bucket", {**labels, "le": bound}, count)
            yield Sample(f"{row.name}_gcount", labels, cumulative[-1])
            yield Sample(f"{row.name}_gsum", labels, sizes.total)


def _sound(value: float | None) -> bool:
    """Whether it can be an amount, a time or a count: a NaN, an infinity or a negative number is none."""
    return value is not None and 0 <= value < _CEILING
