"""A real Prometheus with the scrapes of the simulated fleet and the results of the rules, queried as Grafana does."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from render_dashboards.grafana import Panel
from render_dashboards.grafana import fill as fill_variables

START_SECONDS = 30.0
LOOKBACK = "90s"
"""Imported blocks have no staleness markers, so exited processes would remain for five minutes."""
Rule = dict[str, Any]
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Series(NamedTuple):
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """(seconds, value)"""

    @property
    def last(self) -> float:
        return self.points[-1][1]


@dataclass(frozen=True)
class Server:
    url: str

    def over_time(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        answer = self._ask("query_range", query=expr, start=start, end=end, step=step)
        return [_series(item["metric"], item["values"]) for item in answer["result"]]

    def at(self, expr: str, when: float) -> list[Series]:
        answer = self._ask("query", query=expr, time=when)
        assert answer["resultType"] == "vector", expr
        return [_series(item["metric"], [item["value"]]) for item in answer["result"]]

    def _ask(self, what: str, **parameters: object) -> Any:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}", body, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters['query']}: {json.load(error)['error']}") from None


class Curve(NamedTuple):
    name: str
    series: Series


@dataclass(frozen=True)
class View:
    """A dashboard with a time range (in seconds) and values of its variables."""

    server: Server
    start: float
    end: float
    scrape: float
    values: Mapping[str, str]

    def ask(self, panel: Panel) -> list[list[Curve]]:
        """Return the curves of each query of the panel."""
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
        return fill_variables(expr, {**self.values, **globals_})

    def step(self, panel: Panel) -> float:
        """Return the step of the panel's queries: a multiple of the scrape interval, within its maxDataPoints."""
        most = panel.get("maxDataPoints", 1000)
        return self.scrape * max(1, -(-(self.end - self.start) // (most * self.scrape)))


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return _LEGEND.sub(lambda match: labels.get(match[1], ""), template)


def _series(labels: Mapping[str, str], values: Iterable[tuple[float, str]]) -> Series:
    return Series(labels, [(float(when), float(value)) for when, value in values])


@contextmanager
def running(data: Path) -> Iterator[Server]:
    """Run Prometheus on the blocks in `data`, without scrapes and rules of its own."""
    (data / "prometheus.yml").write_text("{}")
    port = _free_port()
    command = [
        "prometheus",
        f"--config.file={data / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--query.lookback-delta={LOOKBACK}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    server = Server(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=10)


def import_fleet(data: Path, lines: Iterable[str], rule_file: str, span: tuple[float, float], step: int) -> None:
    """Write the scrapes `lines` and the results of the rules into `data`, as blocks."""
    _import(data, lines)
    groups = yaml.safe_load(rule_file)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for level in _levels([rule for rule in rules if "record" in rule]):
        _record(data, level, span, step)
    with running(data) as server:
        firing = list(_alerts(server, [rule for rule in rules if "alert" in rule], span, step))
    _import(data, [*firing, "# EOF\n"])


def _import(data: Path, lines: Iterable[str]) -> None:
    text = data.parent / "lines.openmetrics"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    _promtool("tsdb", "create-blocks-from", "openmetrics", str(text), str(data))


def _levels(rules: list[Rule]) -> Iterator[list[Rule]]:
    """Yield rules that read no other rule, then rules that read those, and so on: promtool reads only blocks."""
    left = {rule["record"]: rule for rule in rules}
    while left:
        ready = [rule for rule in left.values() if not any(_names(rule["expr"], name) for name in left)]
        yield ready
        for rule in ready:
            del left[rule["record"]]


def _names(expr: str, record: str) -> bool:
    return re.search(rf"(?<![\w:]){re.escape(record)}(?![\w:])", expr) is not None


def _record(data: Path, rules: list[Rule], span: tuple[float, float], step: int) -> None:
    file = data.parent / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "level", "interval": f"{step}s", "rules": rules}]}))
    start, end = (f"{moment:.0f}" for moment in span)
    with running(data) as server:
        options = [f"--start={start}", f"--end={end}", f"--eval-interval={step}s", f"--output-dir={data}"]
        _promtool("tsdb", "create-blocks-from", "rules", f"--url={server.url}", *options, str(file))


def _alerts(server: Server, rules: list[Rule], span: tuple[float, float], step: int) -> Iterator[str]:
    """Yield ALERTS as Prometheus writes it: firing once the expression has held for the rule's `for`."""
    for rule in rules:
        hold = _seconds(rule.get("for", "0s"))
        for series in server.over_time(rule["expr"], *span, step):
            labels = {name: value for name, value in series.labels.items() if name != "__name__"}
            labels |= {**rule["labels"], "alertname": rule["alert"], "alertstate": "firing"}
            inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
            since = before = series.points[0][0]
            for when, _ in series.points:
                since = when if when - before > step else since
                before = when
                if when - since >= hold:
                    yield f"ALERTS{{{inside}}} 1 {when:.0f}\n"


def _seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def _promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "prometheus exited; see its output above"
        try:
            with urllib.request.urlopen(f"{server.url}/-/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("prometheus was not ready in time")
