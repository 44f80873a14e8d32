"""Reads a pickled snapshot whose trace stays in columns: four times as fast as dicts, in a tenth of their memory.

Python pickles an entry of torch's trace as `}` MEMOIZE `(` key value … `u`, and most entries have the same keys. This
reader cuts those out of the pickle and gives the C unpickler a run of them as one list of keys and values. BINPERSID
passes each list to `persistent_load`, which keeps the columns. An entry keeps its place in the memo: a MEMOIZE replaces
its dict. Texts, which torch repeats in each entry, are left out in the same way. All that is between the entries must
consist of the instructions that plain_pickle accepts.
"""

from __future__ import annotations

import pickle
import re
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from ..model.trace.columns import NEEDED, Rows
from .plain_pickle import NUMBER, QUICK_LIMIT, cost_of, harmless

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


def loads(data: bytes | bytearray, progress: Callable[[int, int], None] = lambda done, total: None) -> Any:
    """Return the value of a pickled snapshot; runs of its trace's entries are Rows. None if it has no such form.

    Everything that plain_pickle.loads refuses has no such form.
    """
    pairs = _usual_pairs(data)
    if pairs is None or not data.startswith((b"\x80\x04", b"\x80\x05")):
        return None
    texts = sum(bool(text) for _, text in pairs)
    try:
        return _Unpickler(_Source(_rewritten(data, pairs, texts, progress)), len(pairs) - texts).load()
    except (pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError):
        return None


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


def _rewritten(
    data: bytes | bytearray, pairs: Pairs, texts: int, progress: Callable[[int, int], None]
) -> Iterator[bytes]:
    """Yield the pickle, runs of entries as lists. Raises ValueError if something in it is not harmless or too large."""
    entry, groups = _entry(pairs), texts + 1
    view, at, size, cost = memoryview(data), 2, _CHUNK, 0
    yield bytes(data[:2])
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
        chunk = b"".join(_with_runs(between, parts, groups))
        progress(end, len(data))
        yield b"\x95" + struct.pack("<Q", len(chunk))
        yield chunk
        at, size = end, _CHUNK


def _with_runs(between: Sequence[bytes], parts: Sequence[bytes], groups: int) -> Iterator[bytes]:
    """parts: `groups` per entry. A MEMOIZE for the dict is before each entry, one for a text between its groups."""
    begin = 0
    for index in [*(place for place, part in enumerate(between[:-1]) if part), len(between) - 1]:
        if begin < index:
            yield b"](N\x94" + b"\x94".join(parts[begin * groups : index * groups]) + b"eQ"
        part, end, begin = between[index], 0, index
        for start, end in harmless(part):
            yield part[start:end]
        yield part[end:]  # nothing, or the end of the pickle and what Python ignores behind it


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
    def __init__(self, source: _Source, keys: int) -> None:
        super().__init__(source)
        self._width = 2 * keys

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("no instruction that is accepted names a class")

    def persistent_load(self, run: list[Any]) -> Rows:
        """Return the columns of a run: after a first value that has no meaning, keys and values by turns."""
        width, columns = self._width, {}
        for place in range(1, width, 2):
            name, values = run[place], run[place + 1 :: width]
            if type(name) is not str:
                raise pickle.UnpicklingError("a key that is no text")
            columns[name] = _compact(values)
        if not columns.keys() >= NEEDED:  # an entry of something else, or one whose action is a text of its own
            raise pickle.UnpicklingError("no entry of a trace")
        return Rows(columns)


def _compact(values: list[Any]) -> Sequence[Any]:
    """Return numbers in 8 bytes each."""
    if type(values[0]) is int:
        try:
            return array("Q", values)
        except (TypeError, OverflowError):
            pass
    return values
