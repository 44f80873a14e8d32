"""Reads a pickled snapshot whose trace stays in columns: four times as fast as dicts, in a tenth of their memory.

Python pickles an entry of torch's trace as `}` MEMOIZE `(` key value … `u`, and most entries have the same keys. This
reader cuts those out of the pickle and gives the C unpickler a run of them as one list of keys and values. BINPERSID
passes each list to `persistent_load`, which keeps the columns. Texts, which torch repeats in each entry, are left out.

plain_pickle.loads, whose value is the right one, reads whatever is not certain to mean the same in both readers:

- What is between the entries must consist of the instructions that plain_pickle accepts.
- The hole: an entry's dict and texts leave one empty set in their place of the memo. No accepted instruction changes a
  set or makes it a key, and nothing may refer to it in the end.
- The filler: a run of n entries is followed by n - 1 references to another set, so that each item of a trace keeps its
  index. Only a list's APPENDS can consume a run, and in the end all runs and fillers must be items of the traces.
- The snapshot itself is a tuple of keys and values until the end. Its place in the memo is the hole too, so nothing
  refers to it, and nothing else may be on the stack.
"""

from __future__ import annotations

import pickle
import re
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn
from weakref import ref

from ..model.trace.columns import NEEDED, Rows
from .plain_pickle import BOTTOM, NUMBER, PICKLE_ERRORS, QUICK_LIMIT, cost_of, harmless

_CHUNK = 1 << 19
_SAMPLE = 100
_SEARCHED = 8 << 20
"""Bytes in which the first entries are; those with new frames are long."""
_REFERENCE = rb"(?:h.|j.{4})"
_SHORT = b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(16))
_TEXT = rb"\x8c(?:%s)\x94" % _SHORT
_VALUE = rb"(?:%s|%s|K.K.\x86\x94|\]\x94(?:\(%s{1,128}e|%sa)?)" % (NUMBER, _REFERENCE, _REFERENCE, _REFERENCE)
"""A number, a known value, a pool, or a new stack of known frames. Without a bound on frames, a hostile file takes
quadratic time: bytes that look like an entry can overlap."""
_PAIR = re.compile(rb"(?s)(%s)(?:(%s)|%s)" % (_REFERENCE, _TEXT, _VALUE))
_ENTRY = re.compile(rb"(?s)\}\x94\(((?:%s(?:%s|%s)){4,12})u" % (_REFERENCE, _TEXT, _VALUE))
_BEGIN = re.compile(rb"(?s)\x80[\x04\x05](?:\x95.{8})?\}\x94\((?![eu\x95])")
_HOLE = b"h\x00\x94"


def loads(data: bytes | bytearray, progress: Callable[[int, int], None] = lambda done, total: None) -> Any:
    """Return the value of a pickled snapshot; runs of its trace's entries are Rows. None if it has no such form.

    Everything that plain_pickle.loads refuses has no such form, unless it refuses the memory that entries would take.
    """
    pairs, begin = _usual_pairs(data), _BEGIN.match(data)
    if pairs is None or begin is None:
        return None
    try:
        unpickler = _Unpickler(_Source(_rewritten(data, begin.end(), pairs, progress)), pairs)
        bottom, hole, items = unpickler.load()
        if type(bottom) is not bytes or len(items) % 2:
            return None
        result = dict(zip(items[::2], items[1::2]))
        complete = unpickler.without_fillers(result["device_traces"])
    except PICKLE_ERRORS:
        return None
    found = ref(hole)
    del unpickler, hole, items
    return result if complete and found() is None else None


Pairs = Sequence[tuple[bytes, bytes]]


def _usual_pairs(data: bytes | bytearray) -> Pairs | None:
    """Return the keys of most of the first entries, as references to the memo, each with its value if it is a text."""
    found: Counter[Pairs] = Counter()
    begin = max(0, data.find(b"device_traces"))
    for match, _ in zip(_ENTRY.finditer(data, begin, begin + _SEARCHED), range(_SAMPLE)):
        found[tuple(_PAIR.findall(match[1]))] += 1
    return max(found, key=found.__getitem__, default=None)


def _entry(pairs: Pairs) -> re.Pattern[bytes]:
    """Return the pattern of an entry: a group of keys and values up to each text, which is left out."""
    pattern = b"".join(b")" + re.escape(key + text) + b"(" if text else re.escape(key) + _VALUE for key, text in pairs)
    return re.compile(b"(?s)\\}\x94\\((" + pattern + b")u")


def _rewritten(data: bytes | bytearray, at: int, pairs: Pairs, progress: Callable[[int, int], None]) -> Iterator[bytes]:
    """Yield the pickle, runs of entries as lists. Raises ValueError if something in it is not harmless or too large."""
    entry, groups = _entry(pairs), sum(bool(text) for _, text in pairs) + 1
    prefix = b"](" + b"".join(key for key, text in pairs if text) + _HOLE
    view, size, cost = memoryview(data), _CHUNK, 0
    yield BOTTOM + b"\x8f\x94("
    while at < len(data):
        end = min(at + size, len(data))
        parts = entry.split(view[at:end])  # by turns what is between the entries, and the groups of an entry
        if end < len(data):
            if len(parts) == 1:
                size *= 2
                continue
            end -= len(parts[-1])  # perhaps the begin of an entry
            parts[-1] = b""
        between = parts[:: groups + 1]
        del parts[:: groups + 1]
        cost += sum(map(cost_of, filter(None, between)))
        if cost > QUICK_LIMIT * end + (1 << 20):
            raise ValueError("takes too much memory")
        chunk = b"".join(_with_runs(between, parts, groups, prefix))
        progress(end, len(data))
        yield b"\x95" + struct.pack("<Q", len(chunk))
        yield chunk
        at, size = end, _CHUNK


def _with_runs(
    between: Sequence[bytes], parts: Sequence[bytes], groups: int, prefix: bytes
) -> Iterator[bytes | memoryview]:
    """parts: `groups` per entry. A hole for the dict is before each entry, one for a text between its groups."""
    begin = 0
    for index in [*(place for place, part in enumerate(between[:-1]) if part), len(between) - 1]:
        part = between[index]
        if begin < index:
            if part.startswith(b"\x94"):
                raise ValueError("a run in the memo")
            yield prefix + _HOLE.join(parts[begin * groups : index * groups]) + b"eQ"
            if index - begin > 1:
                yield b"NQ" + b"2" * (index - begin - 2)
        begin = index
        pieces, end = harmless(part)
        yield from pieces
        if end:
            if end != b"u.":
                raise ValueError("no dict at the end")
            yield b"tt."  # what is behind it is ignored
            return


class _Source:
    """The file that the unpickler reads."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int) -> bytes:
        while len(self._left) < size and (piece := next(self._pieces, None)) is not None:
            self._left += piece
        found, self._left = self._left[:size], self._left[size:]
        return found

    def readline(self) -> NoReturn:
        raise pickle.UnpicklingError("no instruction that is accepted reads a line")


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: _Source, pairs: Pairs) -> None:
        super().__init__(source)
        self._texts = [text[2:-1].decode("utf-8", "surrogatepass") for _, text in pairs if text]
        self._places, at = list[int](), 1
        for _, text in pairs:
            if not text:
                self._places.append(at)
            at += 1 if text else 2
        self._width = at
        self._entries = 0
        self._filler: set[object] = set()

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("no instruction that is accepted names a class")

    def persistent_load(self, run: list[Any] | None) -> Rows | set[object]:
        """Return the columns of a run: the keys of texts, then a hole and keys and values by turns for each entry."""
        if run is None:
            return self._filler
        first, width = len(self._texts), self._width
        texts = dict(zip(run, self._texts))
        columns = {run[first + place]: _compact(run[first + place + 1 :: width]) for place in self._places}
        names = {*texts, *columns}
        if len(names) < first + len(self._places) or not all(type(name) is str for name in names):
            raise pickle.UnpicklingError("a key that is twice there or no text")
        if not columns.keys() >= NEEDED:  # an entry of something else, or one whose action is a text of its own
            raise pickle.UnpicklingError("no entry of a trace")
        self._entries += (len(run) - first) // width
        return Rows(columns, texts)

    def without_fillers(self, traces: list[Any]) -> bool:
        """Remove the fillers from traces. Return whether those and the runs are all there, in other words unmoved."""
        found = 0
        for trace in {id(each): each for each in traces if type(each) is list}.values():
            kept = [item for item in trace if item is not self._filler]
            found += len(trace) - len(kept) + list(map(type, kept)).count(Rows)
            trace[:] = kept
        return found == self._entries


def _compact(values: list[Any]) -> Sequence[Any]:
    """Return numbers in 8 bytes each."""
    if type(values[0]) is int:
        try:
            return array("Q", values)
        except (TypeError, OverflowError):
            pass
    return values
