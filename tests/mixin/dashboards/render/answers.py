"""What a panel gets to show: its queries with the variables filled in, asked as Grafana asks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mixin.dashboards.grafana import Panel, fill
from mixin.dashboards.render.prometheus import Series, Server

_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Curve(NamedTuple):
    name: str
    series: Series


@dataclass(frozen=True)
class View:
    """A dashboard as somebody looks at it: the time range in seconds, and the values of the variables."""

    server: Server
    start: float
    end: float
    scrape: float
    values: Mapping[str, str]

    def ask(self, panel: Panel) -> list[list[Curve]]:
        """The curves of each of the panel's queries."""
        return [self._curves(target, panel) for target in panel["targets"]]

    def _curves(self, target: dict[str, Any], panel: Panel) -> list[Curve]:
        step = self.step(panel)
        expr = self.filled(target["expr"], step)
        if target.get("instant"):
            found = self.server.at(expr, self.end)
        else:
            found = self.server.over_time(expr, self.start, self.end, step)
        return [Curve(_legend(target.get("legendFormat", ""), series.labels), series) for series in found]

    def filled(self, expr: str, step: float) -> str:
        times = {"__interval": step, "__rate_interval": max(step + self.scrape, 4 * self.scrape)}
        globals_ = {name: f"{seconds:.0f}s" for name, seconds in (*times.items(), ("__range", self.end - self.start))}
        return fill(expr, {**self.values, **globals_})

    def step(self, panel: Panel) -> float:
        """No more points than the panel wants, no finer than the scrapes, in whole scrapes."""
        most = panel.get("maxDataPoints", 1000)
        return self.scrape * max(1, -(-(self.end - self.start) // (most * self.scrape)))


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return _LEGEND.sub(lambda match: labels.get(match[1], ""), template)
