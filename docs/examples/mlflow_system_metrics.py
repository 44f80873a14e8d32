"""Logs the figures of all ranks of a host as system metrics of an MLflow run. Requires gpufrag, mlflow and psutil."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from gpufrag.metrics.scraped import rank_rows

FIGURES = {
    "ratio": "ratio",
    "margin": "margin_bytes",
    "smallest_limit": "smallest_limit_bytes",
    "largest_allocatable": "largest_allocatable_bytes",
    "stranded": "stranded_bytes",
    "reserved": "reserved_bytes",
}


class SidecarMonitor(BaseMetricsMonitor):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def collect_metrics(self) -> None:
        try:
            with urlopen(f"{self._address}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:  # the sidecar does not answer, for example while it restarts: log nothing
            return
        for row in rank_rows(text):
            for field, name in FIGURES.items():
                value = getattr(row, field)
                if value is not None:
                    rank = row.rank.replace(" ", "_").replace(",", "")
                    self._metrics[f"gpufrag_rank_{rank}_{name}"].append(value)

    def aggregate_metrics(self) -> dict[str, float]:
        return {name: max(values) for name, values in self._metrics.items()}


@contextmanager
def sidecar_metrics(run_id: str, address: str, interval: float = 10.0) -> Iterator[None]:
    """Log MLflow's own system metrics and those of the sidecar at `address` while the block runs."""
    monitor = SystemMetricsMonitor(run_id, sampling_interval=interval, samples_before_logging=1)
    monitor.monitors.append(SidecarMonitor(address))
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()
