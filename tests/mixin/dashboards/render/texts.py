"""Panels that are text: single numbers and tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from mixin.dashboards.grafana import Panel
from mixin.dashboards.render.answers import Curve, View
from mixin.dashboards.render.charts import TEXT
from mixin.dashboards.render.values import colour_of, write

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
    _write(axes, titles, cells, widths)


def _write(axes: Axes, titles: list[str], cells: list[list[tuple[str, str]]], widths: list[int]) -> None:
    height = axes.get_window_extent().height / axes.figure.dpi
    total, x = sum(widths), 0.005
    for column, (title, width) in enumerate(zip(titles, widths)):
        axes.text(x, 1, title, color="#6E9FFF", fontsize=9, weight="bold", va="top")
        for number, line in enumerate(cells[: int(height / 0.25) - 1]):
            text, colour = line[column]
            axes.text(x, 1 - (number + 1) * 0.25 / height, text, color=colour, fontsize=9, va="top")
        x += width / total


def _merged(answers: list[list[Curve]]) -> list[Line]:
    """What the transformation `merge` makes: lines that agree in all the labels that every answer has are one."""
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
    """Its text and colour."""
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
