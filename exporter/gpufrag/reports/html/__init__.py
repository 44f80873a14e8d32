"""`gpufrag explain --html`: one file with everything, which loads nothing and runs offline.

The content of a snapshot is untrusted: text is escaped, data is JSON without `<`, and the page's policy allows only the
scripts and styles of this package.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from string import Template

from ... import __version__
from ...model.culprits import Culprit
from ...model.diagnosis import Finding, where
from ...model.trace.profile import Profile
from ...units import format_bytes
from ...web.html import STYLE, Cell, Column, table
from ..explain import Advice, Explained, as_text, live_sites, timeline_text
from .data import device_data

FOLDER = Path(__file__).parent
MOST_ROWS = 50
UNKNOWN = "–"


def render(explained: Sequence[Explained], name: str) -> bytes:
    """Return the report on all devices of the snapshot `name`."""
    scripts, style = _scripts(), _style()
    data = [device_data(each.profile, each.events, each.end) for each in explained]
    page = Template(_read("report.html")).substitute(
        policy=html.escape(policy()),
        title=html.escape(name),
        style=style,
        version=html.escape(__version__),
        devices="".join(_device(each, name) for each in explained),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        licences=html.escape(_read("vendor/LICENSES.txt")),
        scripts="".join(f"<script>{script}</script>\n" for script in scripts),
    )
    return page.encode("utf-8", "replace")  # a path may hold lone surrogates


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


def _device(explained: Explained, name: str) -> str:
    profile = explained.profile
    assessment, found, rules, ranked = explained.analysis
    text = f"{as_text(explained, name)}\n\n{timeline_text(profile, name)}"
    return Template(_read("device.html")).substitute(
        device=profile.device,
        health=assessment.health.value,
        reason=html.escape(assessment.reason),
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
    Column("pins", "number"),
    Column("gain elsewhere", "number"),
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
