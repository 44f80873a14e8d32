"""Torch's message when its allocator fails (CUDA, HIP, XPU, NPU, MPS), and the table of cudaMallocAsync."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..model.facts import Facts
from .log_file import Line, without_marks
from .messages import SIZE, Oom, Size, oom_at, platform_in, read_size

_NEED = re.compile(f"Tried to allocate {SIZE}(?=[. (]|$)")
_CUT = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\. {1,2}Tried(?: [\w.,]{0,20}){0,4}(?<!\.\.\.)$"
    r"|OutOfMemoryError: (?:CUDA|HIP|XPU|NPU) out of memory\.?\s{0,4}$"
)
"""A first line that was wrapped or cut off before its size was complete. A summary's line ends in three dots."""
_SECOND = "Tried to alloc"
_ENDS = ("by PyTorch)", " cached)", "PyTorch but unallocated", "on private pool", "on shared pool")
_ANOTHER = (" to allocate ", "n allocating ", "ut of memory", "Traceback (most", '  File "')
_FRAME = " \t│┃|"
"""Drawn around the lines by some printers of tracebacks."""
_MOST_LINES = 12
"""Lines over which a terminal or a printer of tracebacks may wrap a message."""
_LONGEST = 8000
"""Characters of a message that are read."""
_FIGURES = {
    name: (words, re.compile(pattern))
    for name, words, pattern in (
        ("size", "total capac", f"{SIZE} total capacity|has a total capac(?:i)?ty of {SIZE}"),
        ("driver_free", " free", f"{SIZE} free[;.)]|of which {SIZE} is free"),
        ("limit", " allowed;", f"{SIZE} allowed;"),
        ("already", " already allocated", f"{SIZE} already allocated"),
        ("allocated", " allocated by PyTorch", f"{SIZE} is allocated by PyTorch"),
        ("captive", " in private pools", f"with {SIZE} allocated in private pools"),
        ("cached", " cached)", rf"{SIZE} cached\)"),
        ("reserved", " reserved in total", f"{SIZE} reserved in total by PyTorch"),
        ("unallocated", " but unallocated", f"{SIZE} is reserved by PyTorch but unallocated"),
        ("segment_space", "expandable-segment reserve of", f"expandable-segment reserve of {SIZE}"),
        ("own", "this process has ", f"this process has {SIZE} memory in use"),
        ("mps_torch", "MPS allocated", f"MPS allocated: {SIZE}"),
        ("mps_other", "other allocations", f"other allocations: {SIZE}"),
        ("mps_limit", "max allowed", f"max allowed: {SIZE}"),
    )
}
"""Words that a text with the figure has, which are fast to look for, and its pattern."""
_PROCESS = re.compile(f"Process [0-9]{{1,12}} has {SIZE} memory in use")
_DEVICE = re.compile(r"\([GN]PU {1,2}([0-9]{1,4});|[GN]PU ([0-9]{1,4}|.?) ?has a total")
_EXPANDABLE_ON = ("expandable_segments is enabled", "expandable-segment reserve")


class TorchMessage:
    """Collects one message, which may span several lines."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lines = [line.text]
        self.done = self._complete()

    @staticmethod
    def begins(text: str) -> bool:
        whole = _NEED.search(text) is not None and ("out of memory" in text or "GPU " in text)
        return whole or _CUT.search(text.rstrip(_FRAME)) is not None

    def take(self, text: str) -> bool:
        second = without_marks(text).lstrip(_FRAME).startswith(_SECOND) and _NEED.search(self._text()) is None
        self.done = not second and any(sign in text for sign in _ANOTHER)
        if self.done:
            return False
        self._lines.append(text[:_LONGEST])
        self.done = self._complete()
        return True

    def ooms(self) -> list[Oom]:
        """Return one error per message in the text: a report in JSON may hold several in a line."""
        text = self._text()
        starts = list(_NEED.finditer(text))
        ends = [start.start() for start in starts[1:]] + [len(text)]
        found = [self._oom(text, start, end) for start, end in zip(starts, ends)]
        return found or [oom_at(self._line, None, Facts(None, platform=platform_in(text)))]

    def _text(self) -> str:
        """Join wrapped lines: broken within words, as terminals do, or between them, whichever yields more figures."""
        return max(self._joined(), key=_figures_in) if len(self._lines) > 1 else self._lines[0]

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
            facts = _on_device(read_size(start[1]), body, platform_in(before[-40:] + body[:200]))
        device = _DEVICE.search(body)
        return oom_at(self._line, device and _index(device), facts)


def _mps(need: Size, text: str) -> Facts:
    """CPU and GPU share one memory: the watermark is the limit. MPS prints GB for powers of 1024."""
    sizes = [_figure(name, text, binary=True) for name in ("mps_torch", "mps_other", "mps_limit")]
    torch, other, limit = (size.bytes for size in sizes)
    return Facts(
        requested=need.bytes,
        limit=limit,
        allocated=None if torch is None or other is None else torch + other,
        precision=max(size.precision for size in sizes),
        refused_by_limit=True,
        allocator="mps",
    )


def _figures_in(text: str) -> int:
    return (_NEED.search(text) is not None) + sum(_figure(name, text).bytes is not None for name in _FIGURES)


class _Sums(NamedTuple):
    """The allocator's sums; None if this version of torch does not print them."""

    reserved: int | None = None
    allocated: int | None = None
    free_cached: int | None = None
    captive: int | None = None


def _on_device(need: Size, body: str, platform: str) -> Facts:
    figures = {name: _figure(name, body) for name in _FIGURES}
    known = {name: size.bytes for name, size in figures.items() if size.bytes is not None}
    sums = _sums(known)
    return Facts(
        requested=need.bytes,
        free_cached=sums.free_cached,
        captive=sums.captive,
        driver_free=known.get("driver_free"),
        size=known.get("size"),
        limit=known.get("limit"),
        reserved=sums.reserved,
        allocated=sums.allocated,
        others=_others(body, sums.reserved, "own" in known),
        precision=max(size.precision for size in (need, *figures.values())),
        segment_space=known.get("segment_space"),
        expandable=any(sign in body for sign in _EXPANDABLE_ON) or None,
        platform=platform,
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
    captive = known.get("captive")  # torch counts free memory of private pools as allocated
    return _Sums(allocated + free, allocated - (captive or 0), free, captive)


def _others(body: str, reserved: int | None, own_listed: bool) -> int | None:
    """Return the memory of the other processes that the message lists; None if it lists none.

    In a container torch does not know its own host pid and lists itself among the others: the process whose memory is
    just above what its allocator has reserved.
    """
    sizes = [read_size(text).bytes for text in _PROCESS.findall(body)]
    listed = sorted(size for size in sizes if size is not None)
    if own_listed:
        return sum(listed)
    if not listed or reserved is None:
        return None
    itself = next((size for size in listed if size >= reserved), 0)
    return sum(listed) - itself


def _figure(name: str, text: str, binary: bool = False) -> Size:
    words, pattern = _FIGURES[name]
    found = pattern.search(text) if words in text else None
    return read_size(found and next(filter(None, found.groups())), binary)


def _index(device: re.Match[str]) -> int | None:
    """Torch 2.3 prints the index as a character: device 0 is a NUL, which a log may drop."""
    index = device[1] or device[2]
    if index is not None and index.isdecimal():
        return int(index)
    return ord(index) if index and ord(index) < 32 else None


class AsyncForm(NamedTuple):
    begin: re.Pattern[str]
    """Its group is the device."""
    figures: dict[str, re.Pattern[str]]
    last: str
    """The figure whose line is the last."""
    allocator: str


_ASYNC_FORMS = (
    AsyncForm(
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
    AsyncForm(
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


class AsyncMessage:
    """Collects the table of cudaMallocAsync, torch's or TensorFlow's, which has totals alone."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._text = _unescaped(line.text)
        self._lines = 1
        self._form = next(form for form in _ASYNC_FORMS if form.begin.search(line.text))
        self.done = self._complete()

    @staticmethod
    def begins(text: str) -> bool:
        return any(form.begin.search(text) for form in _ASYNC_FORMS)

    def take(self, text: str) -> bool:
        self._lines += 1
        self._text += "\n" + _unescaped(text)
        self.done = self._complete()
        return True

    def ooms(self) -> list[Oom]:
        begin = self._form.begin.search(self._text)
        found = {name: pattern.search(self._text) for name, pattern in self._form.figures.items()}
        sizes = {name: read_size(match and match[1]) for name, match in found.items()}
        known = {name: size.bytes for name, size in sizes.items()}
        limit = known.get("limit")
        if limit is None and found.get("limit"):  # torch prints an impossible figure for no limit
            limit = known["size"]
        facts = Facts(
            requested=known["requested"],
            allocated=known["allocated"],
            driver_free=known["driver_free"],
            size=known["size"],
            limit=limit,
            precision=max(size.precision for size in sizes.values()),
            allocator=self._form.allocator,
        )
        return [oom_at(self._line, begin and int(begin[1]), facts)]

    def _complete(self) -> bool:
        return self._lines >= _MOST_LINES or self._form.figures[self._form.last].search(self._text) is not None


def _unescaped(text: str) -> str:
    """In JSON the whole table is one line."""
    return text.replace("\\n", "\n")
