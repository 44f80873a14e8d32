"""Panels drawn with matplotlib: curves, bars, heatmaps, single numbers and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from itertools import cycle
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from render_dashboards.grafana import Panel
from render_dashboards.prometheus import Curve, View

COLOURS = {"green": "#73BF69", "red": "#F2495C", "blue": "#5794F2"}
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_SHORT = ("", " K", " Mil", " Bil")
_SECONDS = ((1e-6, 1e6, "µs"), (1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"))


def write(value: float, unit: str, decimals: int | None = None) -> str:
    if math.isnan(value):
        return "NaN"
    if unit == "bytes":
        return _scaled(value, 1024, _BYTES, " ", decimals)
    if unit == "percentunit":
        return f"{_number(value * 100, decimals)}%"
    if unit == "s":
        return _duration(value)
    if unit == "ops":
        return f"{_number(value, decimals)} ops/s"
    return _number(value, decimals) if unit == "none" else _scaled(value, 1000, _SHORT, "", decimals)


def _scaled(value: float, base: int, names: tuple[str, ...], gap: str, decimals: int | None) -> str:
    power = min(int(math.log(abs(value), base)), len(names) - 1) if abs(value) >= base else 0
    return f"{_number(value / base**power, decimals)}{gap}{names[power]}"


def _duration(value: float) -> str:
    for below, factor, name in _SECONDS:
        if abs(value) < below:
            return f"{_number(value * factor, None)} {name}"
    return f"{_number(value / 3600, None)} h"


def _number(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def colour_of(value: float, thresholds: dict[str, Any] | None) -> str:
    found = "green"
    for step in (thresholds or {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            found = step["color"]
    return COLOURS.get(found, found)


TEXT, GRID = "#CCCCDC", "#2C3235"
PALETTE = (
    "#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0", "#37872D", "#FADE2A",
    "#447EBC", "#C15C17",
)  # fmt: skip
_BELOW = {"loc": "upper left", "bbox_to_anchor": (0, -0.09), "ncol": 8, "frameon": False, "labelcolor": TEXT,
          "fontsize": 8, "handlelength": 1, "columnspacing": 1, "borderaxespad": 0.2}  # fmt: skip


def timeseries(axes: Axes, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    curves = [curve for answer in answers for curve in answer]
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    colours = _colours(panel, curves)
    if custom.get("stacking", {}).get("mode") == "normal":
        _stack(axes, view, panel, curves, colours, bars=custom.get("drawStyle") == "bars")
    else:
        for curve, colour in zip(curves, colours):
            times, values = _with_gaps(curve, view.step(panel))
            axes.plot(times, values, color=colour, linewidth=1.2, solid_joinstyle="round")
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", []):
        if step["value"] is not None:
            axes.axhline(step["value"], color=COLOURS.get(step["color"], step["color"]), linestyle="--", linewidth=1)
    _dress(axes, panel, view)
    axes.set_ylim(bottom=0)
    if panel["fieldConfig"]["defaults"]["unit"] == "bytes":
        _whole_bytes(axes)
    if panel["options"]["legend"]["placement"] == "right":
        _table_beside(axes, panel, curves, colours)
    else:
        _names_below(axes, curves, colours)


def _stack(axes: Axes, view: View, panel: Panel, curves: Sequence[Curve], colours: list[str], *, bars: bool) -> None:
    step = view.step(panel)
    times = np.arange(view.start, view.end + step, step)
    below = np.zeros(len(times))
    for curve, colour in zip(curves, colours):
        values = np.nan_to_num(_on(curve, times, step))
        if bars:
            axes.bar(times, values, bottom=below, width=step * 0.9, color=colour)
        else:
            axes.fill_between(times, below, below + values, color=colour, alpha=0.85, linewidth=0)
        below = below + values


def status_history(axes: Axes, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    curves = sorted(answers[0], key=lambda curve: [int(part) for part in curve.name.split() if part.isdigit()])
    step = view.step(panel)
    times = np.arange(view.start, view.end + step, step)
    cells = np.array([_on(curve, times, step) for curve in curves])
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    bounds = [-np.inf, *(step["value"] for step in steps[1:])]
    colours = [COLOURS.get(step["color"], step["color"]) for step in steps]
    found = np.where(np.isnan(cells), np.nan, np.searchsorted(bounds, np.nan_to_num(cells), side="right") - 1)
    look = {"cmap": ListedColormap(colours), "vmin": -0.5, "vmax": len(colours) - 0.5}
    axes.pcolormesh(times, np.arange(len(curves)), found, shading="nearest", **look)
    axes.set_yticks(range(len(curves)), [curve.name for curve in curves])
    axes.invert_yaxis()
    for edge in np.arange(len(curves) + 1) - 0.5:
        axes.axhline(edge, color="#181B1F", linewidth=3)
    _time_axis(axes, view)
    names = [f"{write(bound, panel['fieldConfig']['defaults']['unit'])}+" for bound in bounds[1:]]
    handles = [Patch(color=colour) for colour in colours]
    axes.legend(handles, [f"< {names[0][:-1]}", *names], **_BELOW)


def heatmap(axes: Axes, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    """Prometheus' buckets are cumulative; like Grafana, this draws their differences."""
    curves = sorted(answers[0], key=lambda curve: float(curve.name))
    step = view.step(panel)
    times = np.arange(view.start, view.end + step, step)
    counts = np.array([_on(curve, times, step) for curve in curves])
    cells = np.diff(counts, axis=0, prepend=0)
    cells[~(cells > 0)] = np.nan
    mesh = axes.pcolormesh(times, np.arange(len(curves)), cells, cmap="Blues_r", vmin=0, shading="nearest")
    unit = panel["options"]["yAxis"]["unit"]
    axes.set_yticks(range(len(curves)), [_bound(curve.name, unit) for curve in curves])
    _scale(axes, mesh, "short")
    _time_axis(axes, view)


def _bound(bound: str, unit: str) -> str:
    return "more" if bound == "+Inf" else write(float(bound), unit, 0)


def barchart(axes: Axes, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    label = panel["options"]["xField"]
    (organize,) = [item["options"] for item in panel["transformations"] if item["id"] == "organize"]
    names = list(organize["renameByName"].values())
    places = sorted({curve.series.labels[label] for answer in answers for curve in answer}, key=float)
    below = np.zeros(len(places))
    colours = _fixed(panel)
    for name, answer in zip(names, answers):
        found = {curve.series.labels[label]: curve.series.last for curve in answer}
        values = np.array([found.get(place, 0.0) for place in places])
        if found:
            axes.bar(places, values, bottom=below, color=colours[name], label=name, width=0.7)
        below = below + values
    _dress(axes, panel, view, time=False)
    axes.set_xticks(range(len(places)), [f"{label} {place}" for place in places])
    _whole_bytes(axes)
    axes.legend(**_BELOW)


def _colours(panel: Panel, curves: Sequence[Curve]) -> list[str]:
    fixed, palette = _fixed(panel), cycle(PALETTE)
    return [fixed.get(curve.name) or next(palette) for curve in curves]


def _fixed(panel: Panel) -> dict[str, str]:
    return {
        override["matcher"]["options"]: item["value"]["fixedColor"]
        for override in panel["fieldConfig"]["overrides"]
        for item in override["properties"]
        if item["id"] == "color"
    }


def _on(curve: Curve, times: Any, step: float) -> Any:
    """Return the curve's values at `times`, NaN where it has none."""
    known = {round(when): value for when, value in curve.series.points}
    return np.array([known.get(round(when), np.nan) for when in times])


def _with_gaps(curve: Curve, step: float) -> tuple[list[float], list[float]]:
    times: list[float] = []
    values: list[float] = []
    for when, value in curve.series.points:
        if times and when - times[-1] > step * 1.5:
            times.append(when)
            values.append(np.nan)
        times.append(when)
        values.append(value)
    return times, values


def _dress(axes: Axes, panel: Panel, view: View, *, time: bool = True) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: write(value, defaults["unit"], defaults.get("decimals")))
    )
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=defaults["unit"] == "short"))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    if time:
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        _time_axis(axes, view)


def _time_axis(axes: Axes, view: View) -> None:
    axes.set_xlim(view.start, view.end)
    ticks = np.linspace(view.start, view.end, 7)
    axes.set_xticks(ticks, [f"{datetime.fromtimestamp(tick, timezone.utc):%H:%M}" for tick in ticks])
    axes.get_xticklabels()[0].set_horizontalalignment("left")


def _scale(axes: Axes, mesh: Any, unit: str) -> None:
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.01, fraction=0.03)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value, unit)))
    bar.ax.tick_params(colors=TEXT, labelsize=7)
    bar.outline.set_visible(False)


def _whole_bytes(axes: Axes) -> None:
    """Put ticks at powers of two."""
    top = axes.get_ylim()[1]
    step = 2 ** math.ceil(math.log2(max(top, 1) / 5))
    axes.set_yticks(np.arange(0, top, step))


def _names_below(axes: Axes, curves: Sequence[Curve], colours: list[str]) -> None:
    """Draw as many names as fit in two lines."""
    handles = [Line2D([], [], color=colour, linewidth=2) for colour in colours]
    names = [curve.name for curve in curves]
    wide = axes.get_window_extent().width / axes.figure.dpi
    columns = max(1, int(wide / (0.35 + 0.075 * max(map(len, names)))))
    axes.legend(handles[: 2 * columns], names[: 2 * columns], **{**_BELOW, "ncol": columns})


def _table_beside(axes: Axes, panel: Panel, curves: Sequence[Curve], colours: list[str]) -> None:
    """Draw the legend on the right as a table: name, last value, largest value."""
    defaults = panel["fieldConfig"]["defaults"]
    rows = [(max(value for _, value in curve.series.points), curve, colour) for curve, colour in zip(curves, colours)]
    rows.sort(key=lambda row: -row[0])
    place = {"transform": axes.transAxes, "fontsize": 8, "va": "center", "clip_on": False}
    wide = axes.get_window_extent().width / axes.figure.dpi
    last, most = 1 + 3.05 / wide, 1 + 3.75 / wide
    for text, x in (("Last", last), ("Max", most)):
        axes.text(x, 1.0, text, color="#8E9299", ha="right", **place)
    height = axes.get_window_extent().height / axes.figure.dpi
    for number, (largest, curve, colour) in enumerate(rows[: int(height / 0.18)]):
        y = 1 - (number + 1) * 0.18 / height
        axes.text(1 + 0.12 / wide, y, "━", color=colour, **place)
        axes.text(1 + 0.3 / wide, y, shorten(curve.name, 34, placeholder="…"), color=TEXT, **place)
        for value, x in ((curve.series.last, last), (largest, most)):
            axes.text(x, y, write(value, defaults["unit"], defaults.get("decimals")), color=TEXT, ha="right", **place)


Line = dict[str, Any]


def stat(axes: Axes, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.axis("off")
    ((name, series), *_) = answers[0]
    colour = colour_of(series.last, defaults.get("thresholds"))
    text = write(series.last, defaults["unit"], defaults.get("decimals"))
    named = panel["options"]["textMode"] == "value_and_name"
    axes.text(0.5, 0.35 if named else 0.5, text, color=colour, fontsize=24, ha="center", va="center", weight="bold")
    if named:
        axes.text(0.5, 0.85, name, color=TEXT, fontsize=11, ha="center", va="center")


def table(axes: Axes, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    axes.axis("off")
    organize = next(item["options"] for item in panel["transformations"] if item["id"] == "organize")
    lines = _merged(answers)
    order = organize["indexByName"]
    fields = sorted({field for line in lines for field in line} - set(organize["excludeByName"]), key=order.__getitem__)
    titles = [organize["renameByName"].get(field, field) for field in fields]
    lines = _sorted(panel, lines, dict(zip(titles, fields)))
    cells = [[_cell(panel, title, line.get(field)) for title, field in zip(titles, fields)] for line in lines]
    widths = [max(len(text) for text, _ in column) + 3 for column in zip([(t, "") for t in titles], *cells)]
    _write_table(axes, titles, cells, widths)


def _write_table(axes: Axes, titles: list[str], cells: list[list[tuple[str, str]]], widths: list[int]) -> None:
    height = axes.get_window_extent().height / axes.figure.dpi
    total, x = sum(widths), 0.005
    for column, (title, width) in enumerate(zip(titles, widths)):
        axes.text(x, 1, title, color="#6E9FFF", fontsize=9, weight="bold", va="top")
        for number, line in enumerate(cells[: int(height / 0.25) - 1]):
            text, colour = line[column]
            axes.text(x, 1 - (number + 1) * 0.25 / height, text, color=colour, fontsize=9, va="top")
        x += width / total


def _merged(answers: list[list[Curve]]) -> list[Line]:
    """Grafana's transformation `merge`: join lines that agree in the labels that every answer has."""
    lines: dict[tuple[str, ...], Line] = {}
    shared = set.intersection(*(set(series.labels) for answer in answers for _, series in answer)) - {"__name__"}
    for number, answer in enumerate(answers):
        field = f"Value #{chr(ord('A') + number)}" if len(answers) > 1 else "Value"
        for _, series in answer:
            line = lines.setdefault(tuple(series.labels[label] for label in sorted(shared)), {})
            line.update({name: value for name, value in series.labels.items() if name != "__name__"})
            line[field] = series.last
    return list(lines.values())


def _sorted(panel: Panel, lines: Iterable[Line], fields: dict[str, str]) -> list[Line]:
    for order in panel.get("options", {}).get("sortBy", []):
        lines = sorted(lines, key=lambda line: line.get(fields[order["displayName"]], 0.0), reverse=order["desc"])
    return list(lines)


def _cell(panel: Panel, title: str, value: Any) -> tuple[str, str]:
    if value is None or isinstance(value, str):
        return value or "", TEXT
    defaults = panel["fieldConfig"]["defaults"]
    own = {
        item["id"]: item["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == title
        for item in override["properties"]
    }
    text = write(value, own.get("unit", defaults["unit"]), own.get("decimals"))
    return text, colour_of(value, own["thresholds"]) if "thresholds" in own else TEXT
