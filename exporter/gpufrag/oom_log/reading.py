"""From a log to its out-of-memory errors, in one pass and bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Protocol

from .async_message import AsyncMessage
from .bfc_dump import BfcDump
from .duplicates import Duplicates
from .lines import Line, line_of, split
from .oom import Oom
from .other_messages import read_message
from .torch_message import TorchMessage

_WORTH_A_LOOK = re.compile(
    rb"ut of memory|OUT_OF_MEM|ALLOC_FAILED|to alloc|MemoryAlloc|would exceed|n allocating|to reserve|ErrorOutOfM"
    rb"|Allocation on dev|NVML_SUCCESS == r|OUT_OF_DEVICE_MEM|Dst tensor is not"
)
"""Any line that begins something has one of these: of a gigabyte few lines need to be read as text."""
_MOST_OPEN = 1000
_PATIENCE = 2000
"""Lines of a log after which a message that has not ended is taken as it is."""


class Gathering(Protocol):
    """A message of several lines in the making."""

    done: bool

    @staticmethod
    def begins(text: str) -> bool: ...

    def take(self, text: str) -> bool:
        """Whether the line is the message's; sets `done` where none will follow."""

    def ooms(self) -> list[Oom]: ...


KINDS = (TorchMessage, AsyncMessage, BfcDump)


def read_log(chunks: Iterable[bytes]) -> Iterator[Oom]:
    """Every error once, where its copies can be told; `chunks` are lines, or pieces of very long ones."""
    duplicates = Duplicates()
    for oom in _read(chunks):
        if duplicates.is_new(oom):
            yield oom


def _read(chunks: Iterable[bytes]) -> Iterator[Oom]:
    reader = _Reader()
    for number, raw in split(chunks):
        if reader.busy or _WORTH_A_LOOK.search(raw):
            yield from reader.take(line_of(number, raw))
    yield from reader.end()


class _Reader:
    """What each source of lines has begun to tell, the one that told least recently first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Gathering] = OrderedDict()
        self._told: dict[str, int] = {}
        self._last = ""

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def take(self, line: Line) -> Iterator[Oom]:
        yield from self._give_up(line.number)
        owner = self._owner(line.source)
        gathering = self._open.get(owner)
        taken = gathering is not None and gathering.take(line.text)
        self._last = owner if taken else line.source
        if gathering is not None and gathering.done:
            yield from self._close(owner)
        elif gathering is not None and taken:
            self._remember(owner, line.number, gathering)
        if not taken:
            yield from self._begin(line)

    def _owner(self, source: str) -> str:
        """The source that has the word: only the first line of what is logged at once may be marked in full."""
        goes_on = source not in self._open and self._last in self._open and self._last.startswith(source)
        return self._last if goes_on else source

    def end(self) -> Iterator[Oom]:
        for source in list(self._open):
            yield from self._close(source)

    def _begin(self, line: Line) -> Iterator[Oom]:
        kind = next((kind for kind in KINDS if kind.begins(line.text)), None)
        alone = read_message(line) if kind is None else None
        if kind is not None or alone is not None:
            yield from self._close(line.source)
        if alone is not None:
            yield alone
        if kind is not None:
            self._remember(line.source, line.number, kind(line))
            if self._open[line.source].done:
                yield from self._close(line.source)

    def _remember(self, source: str, number: int, gathering: Gathering) -> None:
        self._open[source] = gathering
        self._open.move_to_end(source)
        self._told[source] = number

    def _close(self, source: str) -> Iterator[Oom]:
        gathering = self._open.pop(source, None)
        if gathering is not None:
            del self._told[source]
            yield from gathering.ooms()

    def _give_up(self, number: int) -> Iterator[Oom]:
        """On the source that has been silent longest, where that is too long or there are too many."""
        oldest = next(iter(self._open), None)
        if oldest is not None and (number - self._told[oldest] > _PATIENCE or len(self._open) > _MOST_OPEN):
            yield from self._close(oldest)
