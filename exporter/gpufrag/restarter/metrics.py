"""The restarter's own metrics: ROWS declares them, Metrics holds the values."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..metrics.names import RESTARTER_CIRCUIT_OPEN
from .reasons import REASONS

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
BOUNDS_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, float("inf"))


class Row(NamedTuple):
    """One metric. `values` of its label are exported from the start, as 0."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


CALLS = Row(
    "gpufrag_restarter_webhook_calls_total",
    COUNTER,
    "Webhook calls by answer: accepted (202), malformed (400), version (unsupported, 400), full (503).",
    ("answer",),
    ("accepted", "malformed", "version", "full"),
)
RECEIVED = Row(
    "gpufrag_restarter_received_total",
    COUNTER,
    "Alerts that entered the queue, by status.",
    ("status",),
    ("firing", "resolved"),
)
DEDUPLICATED = Row(
    "gpufrag_restarter_deduplicated_total",
    COUNTER,
    "Alerts dropped because another alert of the same job was already being handled.",
)
REFUSED_ALERTS = Row(
    "gpufrag_restarter_refused_total",
    COUNTER,
    "Alerts that did not lead to a restart, by reason.",
    ("reason",),
    tuple(reason.label for reason in REASONS),
)
ACTIONS = Row(
    "gpufrag_restarter_actions_total",
    COUNTER,
    "Attempted restarts that ended, by kind of job and result (restarted, defragmented, dry-run, or what went wrong).",
    ("kind", "result"),
)
ENOUGH, NOT_ENOUGH, STILL_FIRING = "enough", "not-enough", "still-firing"
FAILED, NOT_CHECKED = "failed", "not-checked"
DEFRAGMENTATIONS = Row(
    "gpufrag_restarter_defragmentations_total",
    COUNTER,
    "Defragmentations before a restart, by result. No restart follows: enough (the alert ended) or not-checked (the "
    "ratio is low, but Prometheus did not confirm that the alert ended). A restart follows: not-enough (nothing moved, "
    "or the ratio stayed high), still-firing (the alert did not end) or failed.",
    ("result",),
    (ENOUGH, NOT_ENOUGH, STILL_FIRING, FAILED, NOT_CHECKED),
)
IN_PROGRESS = Row("gpufrag_restarter_in_progress", GAUGE, "Restarts in progress, including checkpoints and waits.")
LAST_SUCCESS = Row(
    "gpufrag_restarter_last_success_timestamp_seconds",
    GAUGE,
    "Unix time of the last successful restart. Absent before the first.",
)
CHECKPOINT = Row(
    "gpufrag_restarter_checkpoint_seconds",
    HISTOGRAM,
    "Duration of the checkpoint before a restart, successful or not.",
)
QUEUE = Row("gpufrag_restarter_queue_depth", GAUGE, "Alerts in the queue.")
CIRCUIT_OPEN = Row(
    RESTARTER_CIRCUIT_OPEN,
    GAUGE,
    "1 while the circuit breaker is open and no job is restarted; absent if its state cannot be read.",
)
DRY_RUN = Row("gpufrag_restarter_dry_run", GAUGE, "1 if the restarter only reports what it would do.")
EVENTS_LOST = Row("gpufrag_restarter_events_lost_total", COUNTER, "Kubernetes Events that could not be created.")
SWEEP = Row(
    "gpufrag_restarter_last_sweep_timestamp_seconds",
    GAUGE,
    "Unix time of the last complete search for unfinished restarts. Absent before the first.",
)

ROWS = tuple(value for value in globals().values() if isinstance(value, Row))


class Metrics(Collector):
    """The values. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[Row, tuple[str, ...]], float] = {}
        self._observed: dict[Row, list[float]] = {row: [] for row in ROWS if row.kind == HISTOGRAM}
        for row in ROWS:
            if row.kind == COUNTER and not row.labels:
                self._values[row, ()] = 0
            self._values |= {(row, (value,)): 0 for value in row.values}

    def count(self, row: Row, *labels: str, by: float = 1) -> None:
        with self._lock:
            self._values[row, labels] = self._values.get((row, labels), 0) + by

    def set(self, row: Row, value: float | None) -> None:
        """None removes the series."""
        with self._lock:
            if value is None:
                self._values.pop((row, ()), None)
            else:
                self._values[row, ()] = value

    def observe(self, row: Row, seconds: float) -> None:
        with self._lock:
            counts = self._observed[row] = self._observed[row] or [0.0] * (len(BOUNDS_S) + 1)
            counts[-1] += seconds
            for place, bound in enumerate(BOUNDS_S):
                counts[place] += seconds <= bound

    def value(self, row: Row, *labels: str) -> float | None:
        with self._lock:
            return self._values.get((row, labels))

    def collect(self) -> Iterable[Family]:
        with self._lock:
            return [family for row in ROWS for family in self._family(row)]

    def describe(self) -> Iterable[Family]:
        return []

    def _family(self, row: Row) -> Iterator[Family]:
        if row.kind == HISTOGRAM:
            yield from _histogram(row, self._observed[row])
            return
        constructor = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
        family = constructor(row.name, row.help, labels=row.labels)
        for (owner, labels), value in sorted(self._values.items()):
            if owner is row:
                family.add_metric(labels, value)
        if family.samples:
            yield family


def _histogram(row: Row, counts: list[float]) -> Iterator[Family]:
    if counts:
        buckets = [(floatToGoString(bound), count) for bound, count in zip(BOUNDS_S, counts)]  # type: ignore[no-untyped-call]
        yield HistogramMetricFamily(row.name, row.help, buckets=buckets, sum_value=counts[-1])
