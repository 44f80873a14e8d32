"""Small SVG charts. They need neither scripts nor style attributes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from ...model.fragmentation import Fragmentation
from ...model.layout import AWAITING, CAPTIVE, LIVE, RECLAIMABLE, STRANDED
from ...units import format_bytes

WIDTH, HEIGHT = 64, 20
BAR_WIDTH = 120


def sparkline(values: Sequence[float | None], threshold: float | None = None) -> str:
    """Return a line over equidistant values; None is a gap. Empty with fewer than two known values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    if threshold is not None:
        low, high = min(low, threshold), max(high, threshold)
    scale = (HEIGHT - 2) / (high - low) if high > low else 0.0

    def y(value: float) -> str:
        return f"{HEIGHT - 1 - (value - low) * scale:.1f}"

    step, pieces, pen = WIDTH / (len(values) - 1), [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{place * step:.1f} {y(value)}")
        pen = "L"
    line = ""
    if threshold is not None:
        line = f'<line x1="0" x2="{WIDTH}" y1="{y(threshold)}" y2="{y(threshold)}"/>'
    return (
        f'<svg class="spark" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="last hour">{line}<path d="{"".join(pieces)}"/></svg>'
    )


def memory_bar(heap: Fragmentation) -> str:
    """Return a bar of the process's memory, as wide as its limit."""
    rest = max(0, heap.reserved - heap.active - heap.stranded)
    free = max(0, heap.limit - heap.reserved) if heap.limit is not None else heap.headroom or 0
    parts = (
        ("active", heap.active, "active"),
        ("stranded", heap.stranded, "stranded"),
        ("reclaimable", rest, "reclaimable and private"),
        ("headroom", free, "not reserved"),
    )
    whole = sum(size for _, size, _ in parts)
    if whole <= 0:
        return ""
    left, rects = 0.0, []
    for css, size, name in parts:
        width = BAR_WIDTH * size / whole
        title = f"<title>{name}: {format_bytes(size)}</title>"
        rects.append(f'<rect class="{css}" x="{left:.2f}" width="{width:.2f}" height="12">{title}</rect>')
        left += width
    label = ", ".join(f"{name} {format_bytes(size)}" for _, size, name in parts)
    geometry = f'width="{BAR_WIDTH}" height="12" viewBox="0 0 {BAR_WIDTH} 12" preserveAspectRatio="none"'
    return f'<svg class="bar" {geometry} role="img" aria-label="{label}">{"".join(rects)}</svg>'


MAP_COLUMNS = 64
MAP_KEY = {
    "active": (LIVE + AWAITING, "active"),
    "stranded": (STRANDED, "stranded"),
    "reclaimable": (RECLAIMABLE + CAPTIVE, "reclaimable and private"),
}


def memory_map(layout: str) -> str:
    """Return a map of a device's reserved memory in order of address, row by row, from model.layout.cells."""
    parts, label = [], []
    for css, (states, name) in MAP_KEY.items():
        pieces = [
            f"M{run.start()} {row}h{run.end() - run.start()}v1H{run.start()}z"
            for row, begin in enumerate(range(0, len(layout), MAP_COLUMNS))
            for run in re.finditer(f"[{states}]+", layout[begin : begin + MAP_COLUMNS])
        ]
        share = sum(map(layout.count, states)) / max(1, len(layout))
        label.append(f"{share:.0%} {name}")
        if pieces:
            parts.append(f'<path class="{css}" d="{"".join(pieces)}"><title>{name}: {share:.0%}</title></path>')
    rows = -(-len(layout) // MAP_COLUMNS)
    return (
        f'<svg class="map" viewBox="0 0 {MAP_COLUMNS} {rows}" preserveAspectRatio="none" role="img" '
        f'aria-label="memory map: {", ".join(label)}">{"".join(parts)}</svg>'
    )


def limit_bars(sizes: Mapping[str, int], limit: int | None) -> str:
    """Return a labelled bar per allocator setting, smallest first; those beyond the limit are marked."""
    most = max([*sizes.values(), limit or 0, 1])
    items = []
    for name, size in sorted(sizes.items(), key=lambda item: item[1]):
        css = "stranded" if limit is not None and size > limit else "active"
        bar = f'<rect class="{css}" width="{BAR_WIDTH * size / most:.2f}" height="12"/>'
        svg = f'<svg width="{BAR_WIDTH}" height="12" aria-hidden="true">{bar}</svg>'
        items.append(f"<li>{svg} {format_bytes(size)} {html.escape(name)}</li>")
    return f'<ul class="bars">{"".join(items)}</ul>' if items else ""
