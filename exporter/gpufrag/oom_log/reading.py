"""From a log to its out-of-memory errors, in one pass and bounded memory, copies of an error left out."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Protocol

from .bfc_dump import BfcDump
from .log_file import NAMES_APART, Line, line_of, split
from .messages import Oom, read_message
from .torch_message import AsyncMessage, TorchMessage

_WORTH_A_LOOK = re.compile(
    rb"ut of memory|OUT_OF_MEM|ALLOC_FAILED|to alloc|MemoryAlloc|would exceed|n allocating|to reserve|ErrorOutOfM"
    rb"|Allocation on dev|NVML_SUCCESS == r|OUT_OF_DEVICE_MEM|Dst tensor is not|expandable_segments not supported"
)
"""Every first line of a message has one of these; only such lines are decoded."""
_NO_EXPANDABLE = "expandable_segments not supported"
_MOST_OPEN = 1000
_MAX_LINES_OPEN = 2000
"""An unfinished message is closed after this many further lines of the log."""
_REMEMBERED = 500
"""Recent errors whose copies are recognised."""
_MOST_COPIES = 50
"""Earlier errors to compare with a possible copy."""
_GRID = 256
"""The BFC allocator rounds sizes to a multiple of this many bytes."""
_BFC = ("tensorflow", "jax")
_TIMES = re.compile(
    r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}|[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?:[.,:][0-9]{1,9})?|[0-9]{9,}(?:\.[0-9]{1,9})?"
    r"|\b[A-Z][a-z]{2} {1,2}[0-9]{1,2}\b"
)
_NUMBER = re.compile("[0-9]{1,20}")


class Collector(Protocol):
    """An unfinished message of several lines."""

    done: bool

    @staticmethod
    def begins(text: str) -> bool: ...

    def take(self, text: str) -> bool:
        """Return whether the line is part of the message; set `done` after the last one."""

    def ooms(self) -> list[Oom]: ...


KINDS: tuple[type[TorchMessage] | type[AsyncMessage] | type[BfcDump], ...] = (TorchMessage, AsyncMessage, BfcDump)


def read_log(chunks: Iterable[bytes]) -> Iterator[Oom]:
    """Yield every error once, as far as copies are recognisable; `chunks` are lines, or pieces of very long ones."""
    duplicates, reader = Duplicates(), _Reader()
    for number, raw in split(chunks):
        if reader.busy or _WORTH_A_LOOK.search(raw):
            for oom in reader.take(line_of(number, raw)):
                yield from duplicates.new(oom)
    for oom in reader.end():
        yield from duplicates.new(oom)


class _Reader:
    """The unfinished message of each source of lines, the longest silent first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Collector] = OrderedDict()
        self._last_line: dict[str, int] = {}
        self._last = ""
        self._no_expandable = False

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def take(self, line: Line) -> Iterator[Oom]:
        self._no_expandable = self._no_expandable or _NO_EXPANDABLE in line.text
        yield from self._give_up(line.number)
        owner = self._owner(line.source)
        collector = self._open.get(owner)
        taken = collector is not None and collector.take(line.text)
        self._last = owner if taken else line.source
        if collector is not None and collector.done:
            yield from self._close(owner)
        elif collector is not None and taken:
            self._remember(owner, line.number, collector)
        if not taken:
            yield from self._begin(line)

    def _owner(self, source: str) -> str:
        """Return the source that a line continues: only the first line of a message may have the full prefix."""
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
            yield self._with_support(alone)
        if kind is not None:
            self._remember(line.source, line.number, kind(line))
            if self._open[line.source].done:
                yield from self._close(line.source)

    def _remember(self, source: str, number: int, collector: Collector) -> None:
        self._open[source] = collector
        self._open.move_to_end(source)
        self._last_line[source] = number

    def _close(self, source: str) -> Iterator[Oom]:
        collector = self._open.pop(source, None)
        if collector is not None:
            del self._last_line[source]
            yield from map(self._with_support, collector.ooms())

    def _with_support(self, oom: Oom) -> Oom:
        """The warning that a build has no expandable segments comes earlier in the log than the error."""
        return replace(oom, facts=replace(oom.facts, expandable_supported=False)) if self._no_expandable else oom

    def _give_up(self, number: int) -> Iterator[Oom]:
        """Close the longest silent message if it is too old, or too many are open."""
        oldest = next(iter(self._open), None)
        if oldest is not None and (number - self._last_line[oldest] > _MAX_LINES_OPEN or len(self._open) > _MOST_OPEN):
            yield from self._close(oldest)


@dataclass
class _Seen:
    oom: Oom
    names: frozenset[str]
    """The marks of its lines. A copy without a mark may be anyone's, and belongs to one rank once it has a mark."""
    key: int
    """Bytes requested, -1 if unknown: the order within its allocator."""

    def is_of(self, names: frozenset[str]) -> bool:
        return names <= self.names or self.names <= names


class Duplicates:
    """The last errors, by their figures and, for copies that name only the request, by its size."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []
        self._exact: defaultdict[object, list[_Seen]] = defaultdict(list)
        self._sizes: defaultdict[str, list[_Seen]] = defaultdict(list)
        self._precision = _GRID

    def new(self, oom: Oom) -> Iterator[Oom]:
        """Yield the error unless it is a copy; with a stated doubt if its unknown prefix differs by a number."""
        names = frozenset(oom.source.split(NAMES_APART)) if oom.source else frozenset()
        copies = list(islice((seen for seen in self._candidates(oom) if seen.is_of(names)), _MOST_COPIES))
        if copies and not all(_may_be_another(seen.oom, oom) for seen in copies):
            copies[0].names |= names
            return
        self._add(_Seen(oom, names, -1 if oom.facts.requested is None else oom.facts.requested))
        if copies:
            doubt = (
                f"whether this is another process's error or a copy of line {copies[0].oom.line:,}: "
                "gpufrag does not know the prefix of these lines"
            )
            oom = replace(oom, missing=(*oom.missing, doubt))
        yield oom

    def _candidates(self, oom: Oom) -> Iterator[_Seen]:
        yield from self._exact.get((oom.device, oom.facts), ())
        if not _is_bare(oom):
            return
        group, need = _group(oom), oom.facts.requested
        ordered = self._sizes[group]
        if need is None:
            yield from (seen for seen in ordered if group == "bfc" and _same_device(seen.oom, oom))
            return
        start = bisect_left(ordered, need - max(self._precision, oom.facts.precision), key=attrgetter("key"))
        for seen in ordered[start:]:
            allowed = max(_GRID, seen.oom.facts.precision, oom.facts.precision)
            if seen.key > need + max(self._precision, oom.facts.precision):
                return
            if abs(seen.key - need) <= allowed and _same_device(seen.oom, oom):
                yield seen

    def _add(self, seen: _Seen) -> None:
        if len(self._seen) >= 2 * _REMEMBERED:
            kept, self._precision = self._seen[-_REMEMBERED:], _GRID
            self._seen, self._exact, self._sizes = [], defaultdict(list), defaultdict(list)
            for each in kept:
                self._insert(each)
        self._insert(seen)

    def _insert(self, seen: _Seen) -> None:
        self._seen.append(seen)
        self._exact[seen.oom.device, seen.oom.facts].append(seen)
        insort(self._sizes[_group(seen.oom)], seen, key=attrgetter("key"))
        self._precision = max(self._precision, seen.oom.facts.precision)


def _group(oom: Oom) -> str:
    """Errors that a bare one may copy. An error of torch without a size is never a bare one."""
    return "bfc" if oom.facts.allocator in _BFC else oom.facts.allocator


def _is_bare(oom: Oom) -> bool:
    """Return whether an error names no more than its request, as a copy after a dump or a full message does."""
    facts = oom.facts
    bare = (facts.limit, facts.allocated, facts.free_total, facts.size) == (None, None, None, None)
    return bare and facts.allocator in (*_BFC, "torch")


def _same_device(first: Oom, again: Oom) -> bool:
    return first.device is None or again.device is None or first.device == again.device


def _may_be_another(first: Oom, again: Oom) -> bool:
    """Return whether the text before the two messages differs in numbers alone, dates and times apart."""
    if not again.before or first.source or again.source:
        return False
    one, two = _TIMES.sub("", first.before), _TIMES.sub("", again.before)
    return one != two and _NUMBER.sub("#", one) == _NUMBER.sub("#", two)
