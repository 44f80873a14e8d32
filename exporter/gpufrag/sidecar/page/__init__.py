"""The landing page: which ranks there are, how they fare, and what could not be read. One file, nothing fetched."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

from ... import __version__
from ...metrics.places import NamedRank, name_ranks
from ...metrics.view import CollectorResult, Fleet
from ...units import format_bytes, format_duration
from ...web.html import HEADERS, STYLE, filled, template
from ...wire.oom_report import OomReport
from ...wire.sample import DeviceSample, Snapshot
from ..sample_files import REMEDIES, Skip
from .leaks import leak_rows

__all__ = ["HEADERS", "RankRow", "rank_rows", "render"]

_FOLDER = Path(__file__).parent
_REMEDIES = {reason.value: remedy for reason, remedy in REMEDIES.items()}
_TRIGGER = 4.0
_APART = 1.0  # seconds
NONE = "–"
OOMS = 20
"""So many of the latest out-of-memory errors are shown."""


class RankRow(NamedTuple):
    """A line of the table of ranks; every value is text for people."""

    rank: str
    device: str
    state: str
    age: str
    ratio: str
    verdict: str
    """A class name: `bad` above the trigger, else `good`; `unknown` without a ratio."""
    free_total: str
    largest_allocatable: str
    stranded: str
    reserved: str
    limit: str


def render(fleet: Fleet) -> bytes:
    """The whole page; whatever comes from outside is escaped."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(fleet.time))
    page = _template("index").substitute(
        style=STYLE,
        version=html.escape(__version__),
        time=now,
        summary=html.escape(_summary(fleet)),
        ranks=_fill("rank", (row._asdict() for row in rank_rows(fleet))) or _template("no_ranks").substitute(),
        ooms=_fill("oom", oom_rows(fleet)) or _template("no_ooms").substitute(),
        leaks=_fill("leak", leak_rows(fleet)) or _template("no_leaks").substitute(),
        collectors=_fill("collector", collector_rows(fleet)),
    )
    return page.encode()


def rank_rows(fleet: Fleet) -> list[RankRow]:
    """A row a device of each rank; a process without a device has one row too."""
    return [
        _row(rank, device, fleet.time)
        for rank in name_ranks(fleet.ranks)
        for device in (rank.view.sample.devices or (None,))
    ]


def _row(rank: NamedRank, device: DeviceSample | None, now: float) -> RankRow:
    sample = rank.view.sample
    found = _figures(device) if device and rank.view.alive else _Figures()
    ratio = found.ratio
    return RankRow(
        rank=", ".join(value if name == "rank" else f"{name} {value}" for name, value in rank.labels.items()),
        device=_place(device) if device else NONE,
        state=rank.view.state,
        age=_age(now - sample.time),
        ratio=NONE if ratio is None else f"{ratio:.2f}",
        verdict="unknown" if ratio is None else "bad" if ratio > _TRIGGER else "good",
        free_total=_bytes(found.free_total),
        largest_allocatable=_bytes(found.largest_allocatable),
        stranded=_bytes(found.stranded),
        reserved=_bytes(found.reserved),
        limit=_bytes(found.limit),
    )


def _age(seconds: float) -> str:
    """Whoever dates ahead of this clock by more than the two may be read apart, is told to."""
    return format_duration(max(0.0, seconds)) if seconds > -_APART else f"ahead by {format_duration(-seconds)}"


class _Figures(NamedTuple):
    ratio: float | None = None
    free_total: int | None = None
    largest_allocatable: int | None = None
    stranded: int | None = None
    reserved: int | None = None
    limit: int | None = None


def _figures(device: DeviceSample) -> _Figures:
    """Of the latest snapshot; of an allocator that has none, the sums that it tells."""
    if latest := _latest(device):
        told = latest.measured
        return _Figures(told.ratio, told.free_total, told.largest_allocatable, told.stranded, told.reserved, told.limit)
    if sums := device.sums:
        return _Figures(sums.ratio, sums.free_total, sums.largest_allocatable, None, sums.reserved, device.limit)
    return _Figures()


def _place(device: DeviceSample) -> str:
    return f"{device.device} ({device.framework})" if device.framework else str(device.device)


def _latest(device: DeviceSample) -> Snapshot | None:
    return max(device.snapshots, key=lambda snapshot: snapshot.time, default=None)


def oom_rows(fleet: Fleet) -> list[dict[str, str]]:
    """The latest errors, one a row, of processes that have ended too."""
    return [_oom_row(report, fleet.time) for report in fleet.ooms[:OOMS]]


def _oom_row(report: OomReport, now: float) -> dict[str, str]:
    who, place = report.identity, report.place
    return {
        "id": report.id,
        "age": _age(now - report.time),
        "rank": f"process {who.pid}" if who.rank is None else str(who.rank),
        "device": str(report.device),
        "cause": report.cause,
        "requested": format_bytes(report.requested),
        "evidence": next(iter(report.evidence), NONE),
        "place": f"{'/'.join(Path(place.file).parts[-2:])}:{place.line}" if place else NONE,
        "file": place.file if place else "",
        "next_step": report.next_step,
    }


def collector_rows(fleet: Fleet) -> list[dict[str, str]]:
    rows = [_collector_row(name, result) for name, result in sorted(fleet.collectors.items())]
    for reason, count in sorted(fleet.skipped.items()):
        if count:
            rows.append({"name": "files skipped", "state": "not read", "took": NONE, "reason": _skipped(reason, count)})
    return rows


def _skipped(reason: str, count: int) -> str:
    """How many, why, and what to do where that is known."""
    return f"{count} {reason}" + (f": {_REMEDIES[reason]}" if reason in _REMEDIES else "")


def _collector_row(name: str, result: CollectorResult) -> dict[str, str]:
    return {
        "name": name,
        "state": "read" if result.success else "not read",
        "took": NONE if result.duration_seconds is None else format_duration(result.duration_seconds),
        "reason": result.reason or "",
    }


def _summary(fleet: Fleet) -> str:
    denied = fleet.skipped.get(Skip.DENIED.value)
    return ", ".join(f"{count} {state}" for state, count in fleet.states.items()) + (
        f", {denied} denied" * bool(denied)
    )


def _bytes(size: int | None) -> str:
    return NONE if size is None else format_bytes(size)


def _fill(name: str, rows: Iterable[Mapping[str, str]]) -> str:
    return filled(_FOLDER / f"{name}.html", rows)


def _template(name: str) -> Template:
    return template(_FOLDER / f"{name}.html")
