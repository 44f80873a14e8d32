"""Torch's message when its allocator fails: CUDA, HIP and XPU since 1.0, and MPS."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ..model.facts import Facts
from .lines import Line, without_marks
from .oom import Oom
from .sizes import SIZE, Size, read_size

_NEED = re.compile(f"Tried to allocate {SIZE}(?=[. (]|$)")
_CUT = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\. {1,2}Tried(?: [\w.,]{0,20}){0,4}(?<!\.\.\.)$"
    r"|OutOfMemoryError: (?:CUDA|HIP|XPU|NPU) out of memory\.?\s{0,4}$"
)
"""A first line that a terminal has wrapped, or a log cut off, before the size was whole. A summary's has three dots."""
_SECOND = "Tried to alloc"
_ENDS = ("by PyTorch)", " cached)", "PyTorch but unallocated", "on private pool", "on shared pool")
_ANOTHER = (" to allocate ", "n allocating ", "ut of memory", "Traceback (most", '  File "')
_FRAME = " \t│┃|"
"""Around the lines of a printer that draws a box."""
_MOST_LINES = 12
"""That a terminal, or a printer of tracebacks, may have wrapped a message to."""
_LONGEST = 8000
"""Characters of a message: more are not looked at."""
_FIGURES = {
    name: re.compile(pattern)
    for name, pattern in {
        "size": f"{SIZE} total capacity|has a total capac(?:i)?ty of {SIZE}",
        "driver_free": f"{SIZE} free[;.)]|of which {SIZE} is free",
        "limit": f"{SIZE} allowed;",
        "already": f"{SIZE} already allocated",
        "allocated": f"{SIZE} is allocated by PyTorch",
        "captive": f"with {SIZE} allocated in private pools",
        "cached": rf"{SIZE} cached\)",
        "reserved": f"{SIZE} reserved in total by PyTorch",
        "unallocated": f"{SIZE} is reserved by PyTorch but unallocated",
        "own": f"this process has {SIZE} memory in use",
        "mps_torch": f"MPS allocated: {SIZE}",
        "mps_other": f"other allocations: {SIZE}",
        "mps_limit": f"max allowed: {SIZE}",
    }.items()
}
_PROCESS = re.compile(f"Process [0-9]{{1,12}} has {SIZE} memory in use")
_DEVICE = re.compile(r"\([GN]PU {1,2}([0-9]{1,4});|[GN]PU ([0-9]{1,4}|.?) ?has a total")
_TELLS_LIMITS = ("torch.OutOfMemoryError", "docs.pytorch.org", "total capacity; ")
"""Signs of versions whose message would name a limit if there were one."""


class TorchMessage:
    """Gathers one message, which may go over several lines."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lines = [line.text]
        self.done = self._complete()

    @staticmethod
    def begins(text: str) -> bool:
        told = _NEED.search(text) is not None and ("out of memory" in text or "GPU " in text)
        return told or _CUT.search(text.rstrip(_FRAME)) is not None

    def take(self, text: str) -> bool:
        self.done = not self._waits_for(text) and any(sign in text for sign in _ANOTHER)
        if self.done:
            return False
        self._lines.append(text[:_LONGEST])
        self.done = self._complete()
        return True

    def _waits_for(self, text: str) -> bool:
        """Its second sentence, at the beginning of a line of its own."""
        return without_marks(text).lstrip(_FRAME).startswith(_SECOND) and _NEED.search(self._text()) is None

    def ooms(self) -> list[Oom]:
        """One for each message in the text: a report in JSON may hold several in a line."""
        text = self._text()
        starts = list(_NEED.finditer(text))
        ends = [start.start() for start in starts[1:]] + [len(text)]
        found = [self._oom(text, start, end) for start, end in zip(starts, ends)]
        return found or [Oom(self._line.number, self._line.source, None, Facts(None))]

    def _text(self) -> str:
        """Wrapped in the middle of words, as terminals do, or between them: whichever tells more."""
        return max(self._joined(), key=_told_in) if len(self._lines) > 1 else self._lines[0]

    def _joined(self) -> tuple[str, ...]:
        first, *others = self._lines
        words = [first.rstrip(_FRAME), *(without_marks(line).strip(_FRAME) for line in others)]
        return "".join(self._lines), " ".join(words)

    def _complete(self) -> bool:
        return len(self._lines) >= _MOST_LINES or any(end in text for text in self._joined() for end in _ENDS)

    def _oom(self, text: str, start: re.Match[str], end: int) -> Oom:
        before = text[max(0, start.start() - 200) : start.start()]
        body = text[start.start() : min(end, start.start() + _LONGEST)]
        if "MPS backend" in before:
            facts = _mps(read_size(start[1], binary=True), before)
        else:
            facts = _on_device(read_size(start[1]), before, body)
        device = _DEVICE.search(body)
        return Oom(self._line.number, self._line.source, device and _index(device), facts)


def _mps(need: Size | None, text: str) -> Facts:
    """All in one memory with the processor's: what counts is the watermark. Its GB are powers of 1024."""
    known = {name: _figure(name, text, binary=True) for name in ("mps_torch", "mps_other", "mps_limit")}
    torch, other, limit = known["mps_torch"], known["mps_other"], known["mps_limit"]
    return Facts(
        requested=need and need.bytes,
        limit=limit and limit.bytes,
        allocated=torch.bytes + other.bytes if torch and other else None,
        precision=_precision(known.values()),
        refused_by_limit=True,
        allocator="mps",
    )


def _told_in(text: str) -> int:
    return sum(pattern.search(text) is not None for pattern in (_NEED, *_FIGURES.values()))


class _Sums(NamedTuple):
    """The allocator's own, None where this version does not tell."""

    reserved: int | None = None
    allocated: int | None = None
    free_cached: int | None = None
    captive: int | None = None


def _on_device(need: Size | None, before: str, body: str) -> Facts:
    figures = {name: _figure(name, body) for name in _FIGURES}
    known = {name: size.bytes for name, size in figures.items() if size is not None}
    size, limit, sums = known.get("size"), known.get("limit"), _sums(known)
    if limit is None and any(sign in before + body for sign in _TELLS_LIMITS):
        limit = size
    return Facts(
        requested=need and need.bytes,
        free_cached=sums.free_cached,
        captive=sums.captive,
        driver_free=known.get("driver_free"),
        size=size,
        limit=limit,
        reserved=sums.reserved,
        allocated=sums.allocated,
        others=_others(body, sums.reserved, "own" in known),
        precision=_precision([need, *figures.values()]),
        expandable="expandable_segments is enabled" in body or "expandable-segment reserve" in body or None,
    )


def _sums(known: dict[str, int]) -> _Sums:
    allocated = known.get("already", known.get("allocated"))
    if allocated is None:
        return _Sums()
    free = known.get("unallocated", known.get("cached"))
    if "reserved" in known:
        free = max(0, known["reserved"] - allocated)
    if free is None:
        return _Sums(allocated=allocated)
    captive = known.get("captive")  # torch counts what private pools hold free as allocated
    return _Sums(allocated + free, allocated - (captive or 0), free, captive)


def _others(body: str, reserved: int | None, itself_told: bool) -> int | None:
    """Memory of the other processes that the message lists; None where it lists none.

    In a container torch does not know its own number, and lists itself among the others: the one whose memory
    comes nearest above what its allocator holds.
    """
    listed = sorted(size.bytes for text in _PROCESS.findall(body) if (size := read_size(text)) is not None)
    if itself_told:
        return sum(listed)
    if not listed or reserved is None:
        return None
    itself = next((size for size in listed if size >= reserved), 0)
    return sum(listed) - itself


def _figure(name: str, text: str, binary: bool = False) -> Size | None:
    found = _FIGURES[name].search(text)
    return None if found is None else read_size(next(filter(None, found.groups())), binary)


def _precision(sizes: Iterable[Size | None]) -> int:
    return max((size.precision for size in sizes if size is not None), default=0)


def _index(device: re.Match[str]) -> int | None:
    """Torch 2.3 printed it as a character: device 0 is a NUL, which a log may have lost."""
    index = device[1] or device[2]
    if index is not None and index.isdecimal():
        return int(index)
    return ord(index) if index and ord(index) < 32 else None
