"""The dump of the BFC allocator of TensorFlow and XLA: every chunk it holds, and its statistics."""

from __future__ import annotations

import re
from dataclasses import replace

from ..model.facts import Facts
from .log_file import Line
from .messages import SIZE, Oom, Size, device_in, framework_in, is_notice, is_of_host, oom_at, platform_in, read_size

_BEGIN = re.compile(rf"[Rr]an out of memory trying to allocate {SIZE}(?: ?\(rounded to ([0-9]{{1,20}})\))?")
_CHUNK = re.compile(
    r"\b(InUse|Chunk|Free) {1,2}at (?:0x)?[0-9a-fA-F]{1,20} (?:next [0-9]{1,20} )?of size ([0-9]{1,20})"
)
_STATISTIC = re.compile(r"\b(Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize): {1,40}([0-9]{1,20})\s*$")
_LAST = "MaxAllocSize"
"""The last statistic that matters; newer versions print more."""
_NO_DUMP = "the allocator's dump, which follows its warning in a full log and lists every chunk"
_TORN = "a complete dump: lines of this one are missing, or mixed with another process's"


class BfcDump:
    """Collects one dump; adds up chunks as they come, so a long dump needs no memory."""

    def __init__(self, line: Line) -> None:
        self._line = line
        found = _BEGIN.search(line.text)
        assert found is not None
        self._need = read_size(found[1]) if found[2] is None else Size(int(found[2]))
        self._used = self._free = self._largest = 0
        self._statistics: dict[str, int] = {}
        self.done = False

    @staticmethod
    def begins(text: str) -> bool:
        return _BEGIN.search(text) is not None and not is_notice(text) and not is_of_host(text)

    def take(self, text: str) -> bool:
        """Return whether the line is part of this dump; `done` is set after the last one."""
        if _BEGIN.search(text):
            self.done = True
            return False
        mine = self._take_chunk(text) or self._take_statistic(text) or "bfc_allocator" in text
        self.done = not mine and _LAST in self._statistics
        return mine

    def _take_chunk(self, text: str) -> bool:
        chunk = _CHUNK.search(text)
        if chunk is None:
            return False
        size = int(chunk[2])
        if chunk[1] == "Free":
            self._free += size
            self._largest = max(self._largest, size)
        else:
            self._used += size
        return True

    def _take_statistic(self, text: str) -> bool:
        found = _STATISTIC.search(text)
        if found is not None:
            self._statistics[found[1]] = int(found[2])
        return found is not None

    def ooms(self) -> list[Oom]:
        complete = self._statistics.get("InUse") == self._used  # kept apart from the chunks
        missing = () if complete else (_TORN if self._used or self._statistics else _NO_DUMP,)
        facts = Facts(
            requested=self._need.bytes,
            limit=self._statistics.get("Limit"),
            allocated=self._statistics.get("InUse"),
            precision=self._need.precision,
            allocator=framework_in(self._line.text, "tensorflow"),
            platform=platform_in(self._line.text),
        )
        if complete:
            reserved = self._used + self._free
            grown = facts.limit is not None and (facts.requested or 0) > facts.limit - reserved
            facts = replace(
                facts,
                reserved=reserved,
                free_cached=self._free,
                free_total=self._free if grown else None,  # a pool that cannot grow any more has only its free chunks
                largest_free_block=self._largest,
                largest_allocatable=self._largest,
            )
        return [oom_at(self._line, device_in(self._line.text), facts, *missing)]
