"""`gpufrag explain --html`: one file with everything, which loads nothing and runs offline.

The content of a snapshot is untrusted: text is escaped, data is JSON without `<`, and the page's policy allows only the
scripts and styles of this package.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from ... import __version__
from ...model.allocatable import Driver
from ...model.culprits import Culprit
from ...model.diagnosis import Finding, where
from ...model.trace.columns import Trace
from ...model.trace.profile import Profile, profile_heap
from ...units import format_bytes
from ...web.html import STYLE, Cell, Column, table
from ..explain import Advice, Explained, Side, as_text, best_setting, live_sites, timeline_text, worst_first
from .data import device_data

FOLDER = Path(__file__).parent
MOST_ROWS = 50
UNKNOWN = "–"


def render(
    explained: Sequence[Explained], name: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> bytes:
    """Return the report on all devices of the snapshot `name`."""
    explained, parts = worst_first(explained), []
    for each in explained:
        parts.append(_device(each, f"Device {each.profile.device}", name))
        progress(len(parts), 2 * len(explained))
    return _page(name, explained, parts, progress)


def render_diff(
    records: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[Side, Side]], names: Sequence[str]
) -> bytes:
    """Return the report on two snapshots: for each device what changed, and both heaps.

    records: of reports.explain.diff_record.
    """
    explained, parts = [], []
    for record, pair in zip(records, pairs):
        parts.append(_changes(record))
        for side, name, when in zip(pair, names, ("before", "after")):
            explained.append(Explained(profile_heap(side.heap, Driver(), side.frames), Trace(), side.heap))
            parts.append(_device(explained[-1], f"Device {record['device']} {when}", name))
    return _page(" → ".join(names), explained, parts)


def _page(
    title: str,
    explained: Sequence[Explained],
    parts: Iterable[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> bytes:
    data = []
    for each in explained:
        data.append(device_data(each.profile, each.events, each.end))
        progress(len(explained) + len(data), 2 * len(explained))
    page = Template(_read("report.html")).substitute(
        policy=html.escape(policy()),
        title=html.escape(title),
        style=_style(),
        version=html.escape(__version__),
        devices="".join(parts),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        licences=html.escape(_read("vendor/LICENSES.txt")),
        scripts="".join(f"<script>{script}</script>\n" for script in _scripts()),
    )
    return page.encode("utf-8", "replace")  # a path may hold lone surrogates


def _changes(record: Mapping[str, Any]) -> str:
    """What changed on one device: quantities, call sites and gaps."""
    quantities = [
        [Cell(name), *(Cell(format_bytes(size)) for size in figures.values())]
        for name, figures in record["quantities"].items()
    ]
    sites = [_change_row(change) for change in record["call_sites"][:MOST_ROWS]]
    suspects = [_change_row(change) for change in record["leak_suspects"][:MOST_ROWS]]
    gaps = [
        f"{len(record[key]):,} {name} ({format_bytes(sum(gap['bytes'] for gap in record[key]))})"
        for key, name in (("gaps_appeared", "appeared"), ("gaps_closed", "closed"))
    ]
    return (
        f"<section>\n<h2>Device {record['device']}: changes</h2>\n"
        f"{table(QUANTITY_COLUMNS, quantities, '')}"
        f"<h3>By stack</h3>\n{table(CHANGE_COLUMNS, sites, 'No changes by call site.')}"
        f"<h3>Leak suspects</h3>\n{table(CHANGE_COLUMNS, suspects, 'No leak suspects.')}"
        f"<p>Gaps of at least 1 MiB: {', '.join(gaps)}.</p>\n</section>\n"
    )


QUANTITY_COLUMNS = (Column("quantity"), Column("before", "number"), Column("after", "number"))
CHANGE_COLUMNS = (Column("where", "text"), Column("blocks", "number"), Column("size", "number"))


def _change_row(change: Mapping[str, Any]) -> list[Cell]:
    sign = "+" if change["bytes"] > 0 else ""
    size = f"{sign}{format_bytes(change['bytes'])}"
    return [Cell(where(tuple(change["stack"]))), Cell(f"{change['blocks']:+,}"), Cell(size)]


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _scripts() -> list[str]:
    return [_read("vendor/vendor.js"), _read("map.js"), _read("report.js")]


def _style() -> str:
    return _read("vendor/vendor.css") + STYLE + _read("report.css")


@cache
def policy() -> str:
    """Return the content security policy of every report: nothing is fetched or sent, only our scripts run."""
    scripts = " ".join(map(_hash, _scripts()))
    return f"default-src 'none'; script-src {scripts}; style-src {_hash(_style())}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _device(explained: Explained, heading: str, name: str) -> str:
    profile = explained.profile
    assessment, found, rules, ranked = explained.analysis
    text = as_text(explained, name) + (f"\n\n{timeline_text(profile, name)}" if profile.events else "")
    return Template(_read("device.html")).substitute(
        heading=heading,
        health=assessment.health.value,
        reason=html.escape(assessment.reason),
        setting=html.escape(best_setting(explained)),
        note=f"<p>Note: {html.escape(profile.note)}</p>" if profile.note else "",
        tiles=_tiles(profile),
        moment=_moment(profile),
        culprits=table(CULPRIT_COLUMNS, map(_culprit_row, found[:MOST_ROWS]), "No block pins free memory."),
        findings=_findings(rules),
        advice=_advice(ranked),
        live=table(LIVE_COLUMNS, _live_rows(profile), "No live blocks."),
        text=html.escape(text),
    )


def _moment(profile: Profile) -> str:
    if not profile.events:
        return "The heap at the snapshot."
    return f"The heap at the worst moment, after {profile.worst.events:,} of {profile.events:,} events."


def _tiles(profile: Profile) -> str:
    found = profile.worst.found
    tiles = [
        ("Peak reserved", format_bytes(profile.peak_reserved)),
        ("Peak active", format_bytes(profile.peak.active)),
        ("Stranded", format_bytes(found.stranded)),
        ("Ratio", UNKNOWN if found.ratio is None else f"{found.ratio:.2f}"),
        ("Largest allocatable", _bytes(found.largest_allocatable)),
        ("Largest free block", format_bytes(found.largest_free_block)),
    ]
    items = "".join(f"<li>{html.escape(name)}<b>{html.escape(value)}</b></li>\n" for name, value in tiles)
    return f'<ul class="tiles">\n{items}</ul>\n'


CULPRIT_COLUMNS = (
    Column("where", "text"),
    Column("blocks", "number"),
    Column("size", "number"),
    Column("share of pinned memory", "number"),
    Column("gain in separate segments", "number"),
)


def _culprit_row(culprit: Culprit) -> list[Cell]:
    gain = culprit.unpinned if culprit.allocatable is None else culprit.allocatable
    return [
        Cell(where(culprit.stack), markup=_show_button(culprit.stack[:1])),
        Cell(f"{culprit.blocks:,}"),
        Cell(format_bytes(culprit.size)),
        Cell(format_bytes(culprit.pins)),
        Cell(_bytes(gain)),
    ]


def _show_button(frames: Iterable[str]) -> str:
    return "".join(
        f' <button type="button" class="show" data-search="{html.escape(frame)}">show</button>' for frame in frames
    )


LIVE_COLUMNS = (Column("where", "text"), Column("blocks", "number"), Column("size", "number"))


def _live_rows(profile: Profile) -> list[list[Cell]]:
    return [
        [Cell(where(stack), markup=_show_button(stack[:1])), Cell(f"{blocks:,}"), Cell(format_bytes(size))]
        for stack, blocks, size in live_sites(profile)[:MOST_ROWS]
    ]


def _findings(rules: Sequence[Finding]) -> str:
    items = "".join(
        f"<dt>{html.escape(rule.cause)}</dt>\n<dd>{html.escape(rule.evidence)}<br>"
        f"Change: {html.escape(rule.change)}</dd>\n"
        for rule in rules
    )
    return f"<dl>{items}</dl>" if items else '<p class="empty">No findings.</p>'


def _advice(ranked: Sequence[Advice]) -> str:
    items = "".join(
        f"<li>{html.escape(each.change)} <small>{html.escape(each.gain_text)}</small></li>\n" for each in ranked
    )
    return f"<ol>{items}</ol>" if items else '<p class="empty">No advice.</p>'


def _bytes(size: int | None) -> str:
    return UNKNOWN if size is None else format_bytes(size)
