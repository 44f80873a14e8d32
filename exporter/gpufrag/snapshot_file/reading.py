"""From a path to its snapshot: the raw data, or the heap and what the file records of the driver.

Memory is bounded before it is spent. A file holds at most MAX_BYTES decompressed (GPUFRAG_MAX_SNAPSHOT overrides it), a
compressed file at most MOST_RATIO times its own size, and its data takes at most 20 times the decompressed size.
"""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple, NoReturn

from ..errors import BadInput, Unavailable, one_line, unreadable_is_unavailable
from ..model.allocatable import Driver
from ..model.heap import Heap, parse
from ..model.settings import Settings, infer_release, parse_release
from ..model.trace.columns import Rows
from ..units import format_bytes, parse_bytes
from . import plain_pickle, trace_rows

MAX_BYTES = 512 << 20
"""Of a file, decompressed. A million events with Python stacks take about a tenth of it."""
MOST_RATIO = 100
"""Decompressed to compressed size above FREE_BYTES; snapshots reach 12."""
FREE_BYTES = 16 << 20
_JSON_COST = {b"{": 240, b"[": 72}
"""Estimated bytes of a dict with one item, and of a list."""
MOST_DEVICES = 128
"""Of one process; torch itself allows 120. Each takes a pass over all segments."""
STDIN = "-"
_CHUNK = 1 << 16
_GZIP, _PICKLE, _ZIP = b"\x1f", b"\x80", b"P"  # the first bytes of each
_JSON = (b"{", b"[", b" ", b"\t", b"\r", b"\n")
_KNOWN = (_GZIP, _PICKLE, *_JSON)
_HOW = "take a snapshot with torch.cuda.memory._dump_snapshot('snapshot.pickle')"


class Saved(NamedTuple):
    heap: Heap
    driver: Driver
    """From driver_free, driver_total and cap_bytes (0: no limit) of the JSON form; torch itself dumps none of it."""
    knows_settings: bool
    """Whether the allocator's settings are recorded (torch >= 2.3), or were given."""
    release_known: bool = False
    """Whether the file names the release of torch, or its keys reveal it."""


def name_of(source: str | Path) -> str:
    """Return the name of a source for messages."""
    return "standard input" if str(source) == STDIN else one_line(str(source))


def read(source: str | Path, settings: Settings | None = None) -> Saved:
    """Return the snapshot in a file; `settings` apply if it records none. Raises BadInput, Unavailable."""
    raw = load(source)
    try:
        return read_raw(raw, settings)
    except BadInput as error:
        raise BadInput(f"{name_of(source)}: {error}") from None


def read_raw(raw: Any, settings: Settings | None = None) -> Saved:
    """Return the snapshot in what `load` returned. Raises BadInput."""
    _refuse_expansion(raw)
    recorded = raw.get("allocator_settings") or raw.get("settings") if isinstance(raw, Mapping) else None
    if recorded and not isinstance(recorded, Mapping):
        raise BadInput(f"its allocator settings are a {type(recorded).__name__}, not a mapping; remove them")
    known = bool(recorded or settings)
    release = (raw.get("torch") or infer_release(raw)) if isinstance(raw, Mapping) else None
    if recorded and release is not None:
        recorded = {**recorded, "torch": release}
    elif release is not None:
        settings = replace(settings or Settings(), torch=parse_release(release))
    heap = parse({**raw, "allocator_settings": recorded} if recorded else raw, settings)
    if len(heap.devices) > MOST_DEVICES:
        raise BadInput(f"it has segments of {len(heap.devices)} devices, more than {MOST_DEVICES}")
    return Saved(heap, _driver(raw), known, release is not None)


def _refuse_expansion(raw: Any) -> None:
    """Raise BadInput for a small file that describes a lot: a pickle can refer to one list or dict many times."""
    is_mapping = isinstance(raw, Mapping)
    segments, traces = (raw.get("segments"), raw.get("device_traces")) if is_mapping else (raw, None)
    segments, traces = (each if isinstance(each, list) else [] for each in (segments, traces))
    if len(traces) > MOST_DEVICES:
        raise BadInput(f"it has traces of {len(traces)} devices, more than {MOST_DEVICES}")
    blocks = [segment.get("blocks") for segment in segments if isinstance(segment, Mapping)]
    for name, found in (
        ("segments", segments),
        ("lists of blocks", blocks),
        ("traces", traces),
        *(("entries of a trace", trace) for trace in traces if isinstance(trace, list)),
    ):
        shareable = [
            id(each) for each in found if isinstance(each, (dict, Rows)) or (isinstance(each, (list, tuple)) and each)
        ]
        if len(set(shareable)) < len(shareable):
            raise BadInput(f"two of its {name} are one object, which torch never writes: the file was made by hand")


def _driver(raw: Any) -> Driver:
    if not isinstance(raw, Mapping):
        return Driver()
    free, size = size_of(raw, "driver_free"), size_of(raw, "driver_total")
    if free is not None and size is not None and free > size:
        raise BadInput(f"its driver_free is {free}, more than its driver_total, {size}; correct or remove them")
    return Driver(free, size, size_of(raw, "cap_bytes") or None)


def size_of(raw: Mapping[str, Any], key: str) -> int | None:
    """Return a size that the file may record. Raises BadInput if it is not a size."""
    value = raw.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
        raise BadInput(f"its {key} is not a size in bytes; write a whole number, or remove it")
    return value


def load(
    source: str | Path,
    *,
    stdin: BufferedReader | None = None,
    max_bytes: int | None = None,
    rows: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """Return what torch dumped (a dict, or the list of segments) or the JSON of it, gzipped or not, unchecked.

    rows: leave the entries of a pickled trace in columns, where possible (trace_rows); `progress` is called then.
    `source` is a path, or "-" for `stdin` (default: sys.stdin). Raises BadInput if it is no such file or exceeds its
    bounds, Unavailable if it cannot be read, UsageError if GPUFRAG_MAX_SNAPSHOT is not a size.
    """
    name = name_of(source)
    if max_bytes is None:
        max_bytes = parse_bytes(os.environ.get("GPUFRAG_MAX_SNAPSHOT") or str(MAX_BYTES))
    try:
        with without_gc():
            return _decode(
                _bytes_of(source, name, stdin, max_bytes),
                name,
                partial(trace_rows.loads, progress=progress) if rows else None,
            )
    except MemoryError:
        raise Unavailable(f"{name}: not enough memory; read it on a larger machine") from None


@contextmanager
def without_gc() -> Iterator[None]:
    """Pause the cyclic garbage collector: millions of new dicts would start it again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _bytes_of(source: str | Path, name: str, stdin: BufferedReader | None, max_bytes: int) -> bytearray:
    with unreadable_is_unavailable(name, "snapshot", _HOW):
        if str(source) == STDIN:
            return _decompressed(stdin or _own_stdin(), name, max_bytes)
        with Path(source).open("rb") as file:
            return _decompressed(file, name, max_bytes)


def _own_stdin() -> BufferedReader:
    if sys.stdin is None:
        raise Unavailable("standard input is closed; pipe the snapshot in, or name its file")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _decompressed(file: BufferedReader, name: str, max_bytes: int) -> bytearray:
    """Return all bytes of the file; its first byte decides whether the rest is read."""
    head = file.peek(1)[:1]
    if not head:
        raise BadInput(f"{name}: is empty: the dump was cut off or never written; {_HOW}")
    if head not in _KNOWN:
        raise _foreign(head, name)
    data = bytearray()
    for part in _inflated(file, name) if head == _GZIP else iter(lambda: file.read(_CHUNK), b""):
        data += part
        if len(data) > max_bytes:
            raise BadInput(
                f"{name}: larger than {format_bytes(max_bytes)} decompressed; record it with a smaller max_entries, "
                "or raise GPUFRAG_MAX_SNAPSHOT"
            )
    return data


def _inflated(file: BufferedReader, name: str) -> Iterator[bytes]:
    packed = unpacked = 0
    stream = zlib.decompressobj(wbits=31)
    left = b""
    while left or (left := file.read(_CHUNK)):
        if stream.eof:  # another member
            stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(left, 16 * _CHUNK)
        except zlib.error:
            raise BadInput(f"{name}: its gzip stream is cut off or damaged; copy it again") from None
        rest = stream.unused_data if stream.eof else stream.unconsumed_tail
        packed, left, unpacked = packed + len(left) - len(rest), rest, unpacked + len(part)
        if unpacked > FREE_BYTES + MOST_RATIO * packed:
            raise BadInput(
                f"{name}: compressed more than {MOST_RATIO}:1, unlike any snapshot; decompress it first if you trust it"
            )
        yield part
    if not stream.eof:
        raise BadInput(f"{name}: its gzip stream is cut off or damaged; copy it again")


def _decode(data: bytearray, name: str, read_rows: Callable[[bytearray], Any] | None) -> Any:
    try:
        if data[:1] == _PICKLE:
            found = None if read_rows is None else read_rows(data)
            return plain_pickle.loads(data) if found is None else found
        if data[:1] in _JSON and data.strip():
            return _from_json(data)
    except BadInput as error:
        raise BadInput(f"{name}: {error}; {_HOW}") from None
    raise _foreign(bytes(data[:1]), name)


def _from_json(data: bytearray) -> Any:
    cost = sum(size * data.count(sign) for sign, size in _JSON_COST.items())
    if cost > plain_pickle.COST_LIMIT * len(data) + (1 << 20):
        raise BadInput(
            f"its data takes more than {plain_pickle.COST_LIMIT} times its size in memory, which no snapshot does"
        )
    import json  # not needed for a pickle, and takes a tenth of the time of a small one

    try:
        return json.loads(data, parse_constant=_no_number, parse_int=_within_64_bits)
    except UnicodeDecodeError:
        raise BadInput("it is neither a pickle nor JSON") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"its JSON is damaged or cut off at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise BadInput("its JSON is nested too deep") from None
    except ValueError:  # Python reads no number of more than 4300 digits
        raise BadInput("its JSON has a number of thousands of digits") from None


def _within_64_bits(text: str) -> int:
    number = int(text)
    if number.bit_length() > 64:
        raise BadInput(f"its JSON has {shown(number)}, beyond 64 bits: no size, address or time is that large")
    return number


def _no_number(text: str) -> NoReturn:
    raise BadInput(f"its JSON has {text}, which is not a number")


def _foreign(head: bytes, name: str) -> BadInput:
    kind = "a zip archive, as torch.save writes" if head == _ZIP else "neither a pickle nor JSON of a snapshot"
    return BadInput(f"{name}: is {kind}; {_HOW}")
