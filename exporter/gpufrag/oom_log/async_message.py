"""Torch's message under cudaMallocAsync: a table of a few lines, where only totals exist."""

from __future__ import annotations

import re

from ..model.facts import Facts
from .lines import Line
from .oom import Oom
from .sizes import SIZE, read_size

_BEGIN = re.compile(r"Allocation on device ([0-9]{1,4}) would exceed allowed memory")
_FIGURES = {
    "allocated": re.compile(rf"Currently allocated {{0,20}}: {SIZE}"),
    "requested": re.compile(rf"Requested {{0,20}}: {SIZE}"),
    "size": re.compile(rf"Device limit {{0,20}}: {SIZE}"),
    "driver_free": re.compile(rf"Free \(according to CUDA\) {{0,20}}: {SIZE}"),
    "limit": re.compile(rf"PyTorch limit \(set by user-supplied memory fraction\)\s{{0,60}}: {SIZE}"),
}
_MOST_LINES = 12


class AsyncMessage:
    """Gathers one message."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._text = _unescaped(line.text)
        self._lines = 1
        self.done = self._complete()

    @staticmethod
    def begins(text: str) -> bool:
        return _BEGIN.search(text) is not None

    def take(self, text: str) -> bool:
        self._lines += 1
        self._text += "\n" + _unescaped(text)
        self.done = self._complete()
        return True

    def ooms(self) -> list[Oom]:
        begin = _BEGIN.search(self._text)
        found = {name: pattern.search(self._text) for name, pattern in _FIGURES.items()}
        sizes = {name: read_size(match and match[1]) for name, match in found.items()}
        known = {name: size.bytes for name, size in sizes.items() if size is not None}
        facts = Facts(
            requested=known.get("requested"),
            allocated=known.get("allocated"),
            driver_free=known.get("driver_free"),
            size=known.get("size"),
            limit=known.get("limit", known.get("size")),
            precision=max((size.precision for size in sizes.values() if size is not None), default=0),
        )
        return [Oom(self._line.number, self._line.source, begin and int(begin[1]), facts)]

    def _complete(self) -> bool:
        return self._lines >= _MOST_LINES or _FIGURES["limit"].search(self._text) is not None


def _unescaped(text: str) -> str:
    """In a report in JSON the whole table is one line."""
    return text.replace("\\n", "\n")
