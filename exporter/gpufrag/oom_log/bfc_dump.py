"""The dump of the BFC allocator, TensorFlow's and XLA's: every chunk it holds, and its statistics."""

from __future__ import annotations

import re
from dataclasses import replace

from ..model.facts import Facts
from .lines import Line
from .oom import Oom
from .other_messages import device_in, is_of_host
from .sizes import SIZE, Size, read_size

_BEGIN = re.compile(rf"ran out of memory trying to allocate {SIZE}(?: ?\(rounded to ([0-9]{{1,20}})\))?")
_HARMLESS = "not a failure"
"""It tried for speed's sake, and does without."""
_CHUNK = re.compile(
    r"\b(InUse|Chunk|Free) {1,2}at (?:0x)?[0-9a-fA-F]{1,20} (?:next [0-9]{1,20} )?of size ([0-9]{1,20})"
)
_STATISTIC = re.compile(r"\b(Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize): {1,40}([0-9]{1,20})\s*$")
_LAST = "MaxAllocSize"
"""Of those that matter; newer versions have more."""
_PATH_OF_JAX = re.compile(r"\bexternal/(?!local_)")

_NO_DUMP = "the allocator's dump, which follows its warning in a full log: it lists every chunk"
_TORN = "a whole dump: lines of this one are missing, or mixed with another process's"


class BfcDump:
    """Gathers one dump; chunks are added up as they come, so that its length costs nothing."""

    def __init__(self, line: Line) -> None:
        self._line = line
        found = _BEGIN.search(line.text)
        assert found is not None
        rounded = None if found[2] is None else Size(int(found[2]), 0)
        self._need = rounded or read_size(found[1])
        self._device = device_in(line.text)
        self._allocator = "jax" if _PATH_OF_JAX.search(line.text) else "tensorflow"
        self._used = self._free = self._largest = 0
        self._statistics: dict[str, int] = {}
        self.done = False

    @staticmethod
    def begins(text: str) -> bool:
        return _BEGIN.search(text) is not None and _HARMLESS not in text and not is_of_host(text)

    def take(self, text: str) -> bool:
        """Whether the line is of this dump; `done` is set when no more will come."""
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
        missing: tuple[str, ...] = ()
        if not self._is_whole:
            missing = (_TORN if self._used or self._statistics else _NO_DUMP,)
        return [Oom(self._line.number, self._line.source, self._device, self._facts(), missing)]

    @property
    def _is_whole(self) -> bool:
        """The chunks in use add up to what the statistics say, which are kept apart from them."""
        return self._statistics.get("InUse") == self._used

    def _facts(self) -> Facts:
        need = self._need and self._need.bytes
        facts = Facts(
            requested=need,
            limit=self._statistics.get("Limit"),
            allocated=self._statistics.get("InUse"),
            precision=self._need.precision if self._need else 0,
            allocator=self._allocator,
        )
        return self._with_chunks(facts, need or 0) if self._is_whole else facts

    def _with_chunks(self, facts: Facts, need: int) -> Facts:
        """Where the pool could not have grown any more, what is free in its chunks is all there is."""
        reserved = self._used + self._free
        grown = facts.limit is not None and need > facts.limit - reserved
        return replace(
            facts,
            reserved=reserved,
            free_cached=self._free,
            free_total=self._free if grown else None,
            largest_free_block=self._largest,
            largest_allocatable=self._largest,
        )
