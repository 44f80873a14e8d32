"""The ranks of a scrape: what `gpufrag top` shows, read back from the text of /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ..errors import BadInput, one_line
from . import names
from .names import Label

PEAK = "peak"
MOST = 1 << 64
"""No count, size or time is larger."""
MOST_TEXT = 60
"""Characters of a label."""
_FIGURES = {
    names.STEPS: "steps",
    names.RESERVED: "reserved",
    names.STRANDED: "stranded",
    names.FREE_TOTAL: "free_total",
    names.LARGEST_ALLOCATABLE: "largest_allocatable",
    names.LIMIT: "limit",
    names.STEP_SMALLEST_LIMIT: "smallest_limit",
    names.STEP_MARGIN: "margin",
    names.OOMS: "ooms",
    names.LEAK_PER_STEP: "leak_per_step",
    names.SAMPLE_TIMESTAMP: "sampled",
    names.SNAPSHOT_TIMESTAMP: "taken",
    names.UP: "up",
}
_IDENTITY = (Label.RANK, Label.PROCESS)


@dataclass(frozen=True)
class RankRow:
    """One device of one rank. Sizes are bytes; None is unknown."""

    rank: str
    """Its rank; `process PID` without one."""
    device: str
    up: bool = True
    steps: int | None = None
    sampled: float | None = None
    """When its sample was written, in seconds of the host's clock."""
    reserved: float | None = None
    stranded: float | None = None
    free_total: float | None = None
    largest_allocatable: float | None = None
    limit: float | None = None
    smallest_limit: float | None = None
    margin: float | None = None
    peak_ratio: float | None = None
    ooms: int | None = None
    leak_per_step: float | None = None

    @property
    def ratio(self) -> float | None:
        return _ratio(self.free_total, self.largest_allocatable)


def _ratio(free: float | None, largest: float | None) -> float | None:
    return free / largest if free and largest else None


def rank_rows(text: str) -> list[RankRow]:
    """Return a row per rank and device. Raises BadInput for text that is not an exposition of metrics."""
    process: dict[str, dict[str, float]] = {}
    devices: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError) as error:
        raise BadInput(f"the answer is not metrics ({error}); check the address") from None
    for sample in samples:
        field, rank = _FIGURES.get(sample.name), _name(sample.labels)
        if field is None or rank is None or not abs(sample.value) < MOST:  # NaN fails here too
            continue
        device = _text(sample.labels, Label.DEVICE)
        if device is None:
            process.setdefault(rank, {})[field] = sample.value
            continue
        if framework := _text(sample.labels, Label.FRAMEWORK):
            device = f"{device} ({framework})"
        figures = devices.setdefault((rank, device), {}).setdefault(sample.labels.get(Label.AT, ""), {})
        figures[field] = figures.get(field, 0.0) + sample.value  # of both pools
    rows = [_row(rank, device, process.get(rank, {}), moments) for (rank, device), moments in devices.items()]
    with_device = {row.rank for row in rows}
    without = [_row(rank, "", figures, {}) for rank, figures in process.items() if rank not in with_device]
    return sorted([*rows, *without], key=lambda row: (len(row.rank), row.rank, row.device))


def _name(labels: Mapping[str, str]) -> str | None:
    found = [(name, _text(labels, name)) for name in _IDENTITY]
    return ", ".join(text if name == Label.RANK else f"{name} {text}" for name, text in found if text) or None


def _text(labels: Mapping[str, str], name: str) -> str | None:
    """A label of a server that may be hostile, for a terminal."""
    return None if (text := labels.get(name)) is None else one_line(text[:MOST_TEXT])


def _row(rank: str, device: str, process: Mapping[str, float], moments: Mapping[str, Mapping[str, float]]) -> RankRow:
    peak = moments.get(PEAK, {})
    others = [figures for at, figures in moments.items() if at not in ("", PEAK)]
    latest = max(others, key=lambda figures: figures.get("taken", 0.0), default=peak)
    figures = {**process, **moments.get("", {}), **latest}
    counts = {name: int(figures.pop(name)) for name in ("steps", "ooms") if name in figures}
    figures.pop("taken", None)
    up = figures.pop("up", 1.0) > 0
    peak_ratio = _ratio(peak.get("free_total"), peak.get("largest_allocatable"))
    return RankRow(rank, device, up, peak_ratio=peak_ratio, **counts, **figures)  # type: ignore[arg-type]
