"""A whole dashboard as one picture, with its panels in the places that Grafana gives them."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from render_dashboards import charts
from render_dashboards.charts import TEXT
from render_dashboards.grafana import Board, Panel
from render_dashboards.prometheus import Curve, View

KINDS = {
    "timeseries": charts.timeseries,
    "status-history": charts.status_history,
    "heatmap": charts.heatmap,
    "barchart": charts.barchart,
    "stat": charts.stat,
    "table": charts.table,
}
CAPTION = "Simulated data. Drawn from the dashboard's own queries by tools/render_dashboards, not by Grafana."
_COLUMN, _LINE = 0.78, 0.36  # inches a grid unit
_HEAD = 0.62
_BACKGROUND, _PANEL = "#111217", "#181B1F"
_ROOM = {"timeseries": (0.75, 0.25, 0.7), "status-history": (1.15, 0.25, 0.55), "heatmap": (0.75, 0.5, 0.3),
         "barchart": (0.75, 0.2, 0.6)}  # fmt: skip
_WITH_TABLE = (0.75, 3.95, 0.3)
"""Inches left free at the left, right and lower edge, by kind of panel."""
_STYLE = {"axes.facecolor": _PANEL, "axes.edgecolor": _PANEL, "xtick.color": TEXT, "ytick.color": TEXT,
          "xtick.labelsize": 8, "ytick.labelsize": 8, "font.family": "DejaVu Sans"}  # fmt: skip


def draw(board: Board, view: View, path: Path) -> list[str]:
    """Draw `board` as a PNG. Return the titles of panels without data."""
    blank = []
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(24 * _COLUMN, lines * _LINE + _HEAD), dpi=80, facecolor=_BACKGROUND)
        FigureCanvasAgg(figure)
        _write(figure, 0.012 * 24 * _COLUMN, 0.3, board["title"], size=16, weight="bold")
        _write(figure, 15.5 * _COLUMN, 0.3, CAPTION, size=9)
        for panel in board["panels"]:
            if panel["type"] == "row":
                place = panel["gridPos"]
                _write(figure, 0.15, _HEAD + (place["y"] + 0.55) * _LINE, f"▾ {panel['title']}", size=12)
            else:
                answers = view.ask(panel)
                blank += [] if any(answers) else [panel["title"]]
                _panel(figure, panel, view, answers)
        figure.savefig(path, facecolor=_BACKGROUND, metadata={"Software": None})
    return blank


def _panel(figure: Figure, panel: Panel, view: View, answers: list[list[Curve]]) -> None:
    place = panel["gridPos"]
    x, y = place["x"] * _COLUMN + 0.05, _HEAD + place["y"] * _LINE + 0.04
    width, height = place["w"] * _COLUMN - 0.1, place["h"] * _LINE - 0.08
    _frame(figure, x, y, width, height)
    _write(figure, x + 0.12, y + 0.19, panel["title"], size=10, weight="bold")
    if not any(answers):
        _write(figure, x + width / 2 - 0.3, y + height / 2, "No data", size=11)
        return
    on_the_right = panel.get("options", {}).get("legend", {}).get("placement") == "right"
    left, right, low = _WITH_TABLE if on_the_right else _ROOM.get(panel["type"], (0.12, 0.12, 0.1))
    _content(figure, (x + left, y + 0.45, width - left - right, height - 0.45 - low), panel, view, answers)


def _content(
    figure: Figure, box: tuple[float, float, float, float], panel: Panel, view: View, answers: list[list[Curve]]
) -> None:
    """`box`: left, top, width, height in inches from the upper left corner."""
    x, y, width, height = box
    wide, high = figure.get_size_inches()
    axes = figure.add_axes((x / wide, 1 - (y + height) / high, width / wide, height / high))
    axes.tick_params(length=0)
    KINDS[panel["type"]](axes, panel, view, answers)


def _frame(figure: Figure, x: float, y: float, width: float, height: float) -> None:
    wide, high = figure.get_size_inches()
    figure.patches.append(
        FancyBboxPatch(
            (x / wide, 1 - (y + height) / high), width / wide, height / high, boxstyle="square,pad=0",
            transform=figure.transFigure, facecolor=_PANEL, edgecolor="#25292E", zorder=-1,
        )
    )  # fmt: skip


def _write(figure: Figure, x: float, y: float, text: str, *, size: float, weight: str = "normal") -> None:
    wide, high = figure.get_size_inches()
    figure.text(x / wide, 1 - y / high, text, color=TEXT, fontsize=size, weight=weight, va="center")
