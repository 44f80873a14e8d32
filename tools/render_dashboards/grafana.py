"""The parts of a dashboard's JSON, and its variables replaced as Grafana does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Board = dict[str, Any]
Panel = dict[str, Any]

GLOBALS = {"__rate_interval": "4m", "__interval": "1m", "__range": "3h", "__url_time_range": "from=now-3h&to=now"}
_VARIABLE = re.compile(r"\$([a-zA-Z_]\w*)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")


def panels(board: Board) -> list[Panel]:
    """Return the panels without row headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: Board) -> Iterator[tuple[Panel, str]]:
    """Yield every query with its panel."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel, target["expr"]


def variables(board: Board) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the variables in `text`. Raises KeyError for an undefined one."""
    known = {**GLOBALS, **values}
    return _VARIABLE.sub(lambda match: known[next(filter(None, match.groups()))], text)
