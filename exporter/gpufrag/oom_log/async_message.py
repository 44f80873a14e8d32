"""Messages of cudaMallocAsync, torch's and TensorFlow's: a table of a few lines, where only totals exist."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..model.facts import Facts
from .lines import Line
from .oom import Oom
from .sizes import SIZE, read_size


class Form(NamedTuple):
    begin: re.Pattern[str]
    """Its group is the device."""
    figures: dict[str, re.Pattern[str]]
    last: str
    """The figure whose line is the last."""
    allocator: str


_FORMS = (
    Form(
        re.compile(r"Allocation on device ([0-9]{1,4}) would exceed allowed memory"),
        {
            "allocated": re.compile(rf"Currently allocated {{0,20}}: {SIZE}"),
            "requested": re.compile(rf"Requested {{0,20}}: {SIZE}"),
            "size": re.compile(rf"Device limit {{0,20}}: {SIZE}"),
            "driver_free": re.compile(rf"Free \(according to CUDA\) {{0,20}}: {SIZE}"),
            "limit": re.compile(rf"PyTorch limit \(set by user-supplied memory fraction\)\s{{0,60}}: {SIZE}"),
        },
        "limit",
        "torch",
    ),
    Form(
        re.compile(r"gpu_async_([0-9]{1,4}) cuMemAllocAsync failed to allocate "),
        {
            "requested": re.compile(f"cuMemAllocAsync failed to allocate {SIZE}"),
            "driver_free": re.compile("Free memory/Total memory: ([0-9]{1,18}(?=/))"),
            "size": re.compile("Free memory/Total memory: [0-9]{1,18}/([0-9]{1,18})"),
            "allocated": re.compile(r"\bInUse: {1,40}([0-9]{1,18})"),
        },
        "allocated",
        "tensorflow",
    ),
)
_MOST_LINES = 12


class AsyncMessage:
    """Gathers one message."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._text = _unescaped(line.text)
        self._lines = 1
        self._form = next(form for form in _FORMS if form.begin.search(line.text))
        self.done = self._complete()

    @staticmethod
    def begins(text: str) -> bool:
        return any(form.begin.search(text) for form in _FORMS)

    def take(self, text: str) -> bool:
        self._lines += 1
        self._text += "\n" + _unescaped(text)
        self.done = self._complete()
        return True

    def ooms(self) -> list[Oom]:
        begin = self._form.begin.search(self._text)
        found = {name: pattern.search(self._text) for name, pattern in self._form.figures.items()}
        sizes = {name: read_size(match and match[1]) for name, match in found.items()}
        known = {name: size.bytes for name, size in sizes.items() if size is not None}
        facts = Facts(
            requested=known.get("requested"),
            allocated=known.get("allocated"),
            driver_free=known.get("driver_free"),
            size=known.get("size"),
            limit=known.get("limit", known.get("size")),
            precision=max((size.precision for size in sizes.values() if size is not None), default=0),
            allocator=self._form.allocator,
        )
        return [Oom(self._line.number, self._line.source, begin and int(begin[1]), facts)]

    def _complete(self) -> bool:
        return self._lines >= _MOST_LINES or self._form.figures[self._form.last].search(self._text) is not None


def _unescaped(text: str) -> str:
    """In a report in JSON the whole table is one line."""
    return text.replace("\\n", "\n")
