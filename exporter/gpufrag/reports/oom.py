"""Out-of-memory errors as text or JSON: agents' reports, and the errors of a log with their verdicts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, NamedTuple

from ..errors import one_line
from ..model.fragmentation import Fragmentation
from ..model.verdict import Verdict
from ..oom_log import Oom
from ..units import format_bytes, format_duration
from ..wire.oom_report import OomReport, Point
from .terminal import Emphasis

UNKNOWN = "–"
_STACKS = {"thread": "the requesting thread", "main": "the main thread (the requesting thread runs no Python)"}
_SUMS = (
    "free_total", "largest_allocatable", "free_cached", "largest_free_block", "reclaimable", "stranded", "captive",
    "headroom", "limit", "reserved", "active", "private_pool_reserved",
)  # fmt: skip
_WIDTH, _LABEL = 110, 12
_LIST = "{:<14}{:<21}{:<12}{:>7}  {:<14}{:>11}  {}"


def as_record(report: OomReport) -> dict[str, Any]:
    """Return one object of --json: sizes in bytes, None if unknown."""
    who, found, place = report.identity, report.measured, report.place
    return {
        "id": report.id,
        "time": report.time,
        "host": who.host,
        "pid": who.pid,
        "rank": who.rank,
        "device": report.device,
        "verdict": report.cause,
        "requested_bytes": report.requested,
        "free_total_bytes": found.free_total if found else None,
        "largest_allocatable_bytes": found.largest_allocatable if found else None,
        "evidence": list(report.evidence),
        "missing": list(report.missing),
        "next_step": report.next_step,
        "place": asdict(place) if place else None,
    }


def whole_record(report: OomReport) -> dict[str, Any]:
    return as_record(report) | {"report": asdict(report)}


def list_text(reports: Sequence[OomReport], bold: Emphasis = str) -> str:
    head = _LIST.format("report", "time", "rank", "device", "verdict", "requested", "where")
    return "\n".join([bold(head), *map(_line, reports)])


def _line(report: OomReport) -> str:
    return one_line(
        _LIST.format(
            report.id,
            _when(report.time),
            _rank(report),
            report.device,
            report.cause,
            format_bytes(report.requested),
            _where(report),
        ).rstrip()
    )


def as_text(report: OomReport, bold: Emphasis = str) -> str:
    who = report.identity
    step = "" if report.steps is None else f", about step {report.steps}"
    lines = [
        bold(one_line(f"out of memory: {report.cause}; {format_bytes(report.requested)} requested")),
        one_line(
            f"rank {_rank(report)}, device {report.device}, pid {who.pid} on {who.host}, {_when(report.time)} UTC{step}"
        ),
        *_section("why", report.evidence, bold),
        *_section("not known", report.missing, bold),
        *_section("next", [report.next_step], bold),
        *_section("memory at the error", [*_sums(report.measured), *_driver(report)], bold),
        *_section(_peak_title(report), list(_sums(report.last_peak.measured if report.last_peak else None)), bold),
        *_section(f"stack of {_STACKS.get(report.stack_of, report.stack_of)}, innermost first", _stack(report), bold),
        *_section("last samples before the error", list(_samples(report)), bold),
        *_section("allocator settings", [report.alloc_conf] if report.alloc_conf else [], bold),
        "",
        f"the snapshot took {format_duration(report.snapshot_seconds)}, "
        f"the explanation {format_duration(report.explain_seconds)}",
    ]
    return "\n".join(lines)


def _section(title: str, lines: Sequence[str], bold: Emphasis) -> list[str]:
    """Keep each text of a report on one line, without control characters."""
    return ["", bold(one_line(title)), *(f"  {one_line(line)}" for line in lines)] if lines else []


def _sums(measured: Fragmentation | None) -> Iterator[str]:
    for name in _SUMS if measured is not None else ():
        size: int | None = getattr(measured, name)
        yield f"{name:<24}{'unknown':>12}" if size is None else f"{name:<24}{format_bytes(size):>12}{size:>19,}"


def _driver(report: OomReport) -> Iterator[str]:
    if report.driver is not None:
        yield f"{'driver free, of':<24}{format_bytes(report.driver.free):>12}{format_bytes(report.driver.size):>19}"


def _peak_title(report: OomReport) -> str:
    before = 0.0 if report.last_peak is None else max(0.0, report.time - report.last_peak.time)
    return f"memory at the peak of the last recorded step, {format_duration(before)} before the error"


def _stack(report: OomReport) -> list[str]:
    return [f"{frame.file}:{frame.line} in {frame.function}" for frame in report.stack]


def _samples(report: OomReport) -> Iterator[str]:
    if report.recent:
        yield "".join(f"{name:>14}" for name in ("before", "reserved", "allocated", "active", "driver free"))
    for point in report.recent:
        yield "".join(f"{cell:>14}" for cell in _cells(point, report.time))


def _cells(point: Point, error: float) -> list[str]:
    sizes = (point.reserved, point.allocated, point.active, point.driver_free)
    return [format_duration(max(0.0, error - point.time)), *(UNKNOWN if s is None else format_bytes(s) for s in sizes)]


def _rank(report: OomReport) -> str:
    return UNKNOWN if report.identity.rank is None else str(report.identity.rank)


def _where(report: OomReport) -> str:
    place = report.place
    return f"{place.file}:{place.line}" if place else UNKNOWN


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(min(seconds, 1 << 37)))


_MPIRUN = re.compile(r"\b[0-9]{1,5},([0-9]{1,6})\b")
"""mpirun's prefix: job and rank."""


class Explained(NamedTuple):
    oom: Oom
    verdict: Verdict


def explained_record(explained: Explained) -> dict[str, Any]:
    """Return one object of `oom explain --json`: sizes in bytes, None if the log does not have them."""
    oom, verdict = explained
    return {
        "line": oom.line,
        "source": oom.source or None,
        "device": oom.device,
        "allocator": oom.facts.allocator,
        "verdict": verdict.cause.value,
        "requested_bytes": oom.facts.requested,
        "free_total_bytes": oom.facts.known_free,
        "evidence": list(verdict.evidence),
        "missing": list(verdict.missing),
        "next_step": verdict.next_step,
    }


def explained_text(explained: Explained, bold: Emphasis = str) -> str:
    oom, verdict = explained
    source = _MPIRUN.sub(r"rank \1", oom.source)
    where = [f"line {oom.line:,}", source, "" if oom.device is None else f"GPU {oom.device}", oom.facts.allocator]
    lines = [bold(f"{verdict.cause.value.upper()}  ({', '.join(filter(None, where))})")]
    if oom.facts.requested is not None:
        lines += _row("requested", format_bytes(oom.facts.requested))
    for label, texts in (("because", verdict.evidence), ("not known", verdict.missing), ("next", (verdict.next_step,))):
        for index, text in enumerate(texts):
            lines += _row("" if index else label, text)
    return "\n".join(lines)


def _row(label: str, text: str) -> Iterator[str]:
    for index, line in enumerate(wrap(text, _WIDTH - _LABEL, break_on_hyphens=False)):
        yield f"  {'' if index else label:<{_LABEL}}{line}"
