"""From bytes to lines: whose they are, without colours, whatever the encoding, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

LONGEST = 1 << 16
"""Bytes. A longer line comes in pieces of this size, all with its number."""
NAMES_APART = " / "
"""Between the names of a source."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_STEP = re.compile(
    r"[\s:]{0,8}(?:\[[^\[\]]{0,120}\]|\([^()]{0,120}\)|[\w.-]{0,60}[0-9](?:\.[\w.-]{1,60})?:(?= )"
    r"|[\w./-]{1,80}[ \t]{0,20}\|(?= )"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{8,18}(?:Z|[+-][0-9:]{4,5})?(?: std(?:out|err) [FP])?(?=\s)"
    r"|[IWEF][0-9]{4} [0-9:.]{8,30} {1,9}[0-9]{1,10} [\w./-]{1,120}\.cc:[0-9]{1,6}\])"
)
"""One piece of what launchers put before a line."""
_SOURCES = (
    re.compile(r"\[([Rr]ank[ :]?\d{1,6})\]"),  # torch, and what programs write themselves
    re.compile(r"\[(default\d{1,4})\]"),  # torchrun
    re.compile(r"\[(\d{1,5},\d{1,6})\]"),  # mpirun
    re.compile(r"\[(pod/[^\]]{1,120})\]"),  # kubectl logs --prefix
    re.compile(r"\(([^()]{0,60}pid=\d{1,10}[^()]{0,60})\)"),  # ray
    re.compile(r"^[IWEF]\d{4} \S{1,30} +(\d{1,10}) "),  # absl's threads, as JAX logs
    re.compile(
        r"^\s*(\d{1,5}|[A-Za-z][\w-]{0,60}\d(?:\.[\w.-]{1,60})?|[A-Za-z][\w.-]{0,60}\d|\d+\.\d+\.\d+\.\d+):$"
    ),  # srun --label; pdsh
    re.compile(r"^\s*([\w./-]{1,80})[ \t]{0,20}\|$"),  # docker compose
)

_IN_JSON = re.compile(
    r'^\s*\{.{0,2000}?"(?:(?:global_)?rank": ?"?(?=[0-9])|(?:log|msg|message)": ?"\[rank)([0-9]{1,6})'
)


class _Mark(NamedTuple):
    piece: str
    end: int


class Line(NamedTuple):
    number: int
    source: str
    """Whose it is, by what a launcher has put before it; empty where nothing tells."""
    text: str


def split(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Physical lines, numbered from 1; what a progress bar has overwritten (up to a bare CR) is a line of its own."""
    number = 1
    for chunk in chunks:
        for piece in chunk.rstrip(b"\r\n").split(b"\r"):
            yield number, piece
        number += chunk.endswith(b"\n")


def line_of(number: int, raw: bytes) -> Line:
    text = _COLOUR.sub("", raw.decode("utf-8", "replace"))
    return Line(number, _source(text), text)


def without_marks(text: str) -> str:
    """What follows the launcher's marks, of a line that goes on with the one before it."""
    marks = takewhile(lambda mark: not mark.piece.startswith("(") or "pid=" in mark.piece, _marks(text))
    return text[max((mark.end for mark in marks), default=0) :].lstrip(": \t")


def _source(text: str) -> str:
    if (rank := _IN_JSON.match(text)) is not None:
        return f"rank{rank[1]}"
    marks = list(_marks(text))
    found = [name.group(1) for mark in marks for pattern in _SOURCES if (name := pattern.search(mark.piece))]
    return NAMES_APART.join(dict.fromkeys(found))


def _marks(text: str) -> Iterator[_Mark]:
    end = 0
    while (step := _STEP.match(text, end)) is not None and end < 400:
        end = step.end()
        yield _Mark(step.group().lstrip(": \t").rstrip(), end)
