"""The restarter's own metrics: ROWS says what there is, Metrics holds the values. No other module names one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .reasons import REASONS

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
BOUNDS_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, float("inf"))


class Row(NamedTuple):
    """One metric. `values`: of its one label, those that are there from the start, at 0."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


CALLS = Row(
    "gpufrag_restarter_webhook_calls_total",
    COUNTER,
    "Calls of Alertmanager, by what was answered: accepted (202), malformed or version (400), full (503).",
    ("answer",),
    ("accepted", "malformed", "version", "full"),
)
RECEIVED = Row(
    "gpufrag_restarter_received_total",
    COUNTER,
    "Alerts taken into the queue, by their own status.",
    ("status",),
    ("firing", "resolved"),
)
DEDUPLICATED = Row(
    "gpufrag_restarter_deduplicated_total",
    COUNTER,
    "Alerts about a job that another alert has already brought up: other ranks, repeats, a second Alertmanager.",
)
REFUSED = Row(
    "gpufrag_restarter_refused_total",
    COUNTER,
    "Alerts that led to no restart, by reason.",
    ("reason",),
    tuple(reason.label for reason in REASONS),
)
ACTIONS = Row(
    "gpufrag_restarter_actions_total",
    COUNTER,
    "Restarts that have ended, by kind of job and result: restarted, dry-run, or what went wrong.",
    ("kind", "result"),
)
IN_PROGRESS = Row("gpufrag_restarter_in_progress", GAUGE, "Restarts under way now, checkpoint and waiting included.")
LAST_SUCCESS = Row(
    "gpufrag_restarter_last_success_timestamp_seconds",
    GAUGE,
    "When a restart last ended with all pods ready; absent before the first.",
)
CHECKPOINT = Row(
    "gpufrag_restarter_checkpoint_seconds",
    HISTOGRAM,
    "How long the checkpoint before a restart took, whether it came about or not.",
)
QUEUE = Row("gpufrag_restarter_queue_depth", GAUGE, "Alerts that wait to be looked at.")
CIRCUIT_OPEN = Row(
    "gpufrag_restarter_circuit_open",
    GAUGE,
    "1 while the circuit is open and nothing is restarted until a person closes it; absent where it cannot be read.",
)
DRY_RUN = Row("gpufrag_restarter_dry_run", GAUGE, "1 where nothing is restarted, only said what would be.")
EVENTS_LOST = Row("gpufrag_restarter_events_lost_total", COUNTER, "Kubernetes Events that the API server did not take.")
SWEEP = Row(
    "gpufrag_restarter_last_sweep_timestamp_seconds",
    GAUGE,
    "When all namespaces were last searched for jobs that a restart had left half way; absent before the first.",
)

ROWS = (
    CALLS,
    RECEIVED,
    DEDUPLICATED,
    REFUSED,
    ACTIONS,
    IN_PROGRESS,
    LAST_SUCCESS,
    CHECKPOINT,
    QUEUE,
    CIRCUIT_OPEN,
    DRY_RUN,
    EVENTS_LOST,
    SWEEP,
)


class Metrics(Collector):
    """The values. Any thread may change or read them."""

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
        """None takes the series away."""
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
