"""From a path to what the file holds, whatever it is called: what it is shows in its first bytes."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from io import BufferedReader
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NoReturn

from ..errors import BadInput, Unavailable, one_line
from . import plain_pickle

MAX_BYTES = 1 << 30
"""Of a file, unpacked. A million events with Python stacks take about a tenth of it."""
STDIN = "-"
_GZIP, _PICKLE, _ZIP = b"\x1f", b"\x80", b"P"  # the first bytes of each
_JSON = (b"{", b"[", b" ", b"\t", b"\r", b"\n")
_KNOWN = (_GZIP, _PICKLE, *_JSON)
_HOW = "take one with torch.cuda.memory._dump_snapshot('snapshot.pickle')"


def name_of(source: str | Path) -> str:
    """What messages call it."""
    return "standard input" if str(source) == STDIN else one_line(str(source))


def load(source: str | Path, *, stdin: BufferedReader | None = None, max_bytes: int = MAX_BYTES) -> Any:
    """What torch dumped (a dict, or the list of segments) or the JSON of the same, gzipped or not.

    `source` is a path, or "-" for `stdin` (default: the process's own). The shape of the data is not looked at:
    that is for `model.heap`. Raises BadInput for what is no such file, Unavailable for one that cannot be read.
    """
    name = name_of(source)
    try:
        data = _bytes_of(source, name, stdin, max_bytes)
        return _decode(data, name)
    except MemoryError:
        raise Unavailable(f"{name}: unpacked, it is larger than the free memory; read it on a larger machine") from None


def _bytes_of(source: str | Path, name: str, stdin: BufferedReader | None, max_bytes: int) -> bytes:
    try:
        if str(source) == STDIN:
            return _unpacked(stdin or _own_stdin(), name, max_bytes)
        with Path(source).open("rb") as file:
            return _unpacked(file, name, max_bytes)
    except IsADirectoryError:
        raise Unavailable(f"{name}: is a directory; name the snapshot file inside it") from None
    except FileNotFoundError:
        raise Unavailable(f"{name}: no such file; {_HOW}") from None
    except PermissionError:
        raise Unavailable(f"{name}: permission denied; make it readable for you (chmod, or a copy)") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte in it
        raise Unavailable(f"{name!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _own_stdin() -> BufferedReader:
    if sys.stdin is None:
        raise Unavailable("standard input is closed; pipe the snapshot in, or name its file")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _unpacked(file: BufferedReader, name: str, max_bytes: int) -> bytes:
    """All bytes of the file, of which the first tells whether the rest is worth reading."""
    head = file.peek(1)[:1]
    if not head:
        raise BadInput(f"{name}: is empty: the dump was cut off or never written; {_HOW}")
    if head not in _KNOWN:
        _refuse(head, name)
    try:
        data = (gzip.GzipFile(fileobj=file) if head == _GZIP else file).read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise BadInput(f"{name}: its gzip stream is cut off or damaged; copy it again") from None
    if len(data) > max_bytes:
        raise BadInput(f"{name}: holds more than {max_bytes} bytes unpacked; record it with a smaller max_entries")
    return data


def _decode(data: bytes, name: str) -> Any:
    try:
        if data[:1] == _PICKLE:
            return plain_pickle.loads(data)
        if data[:1] in _JSON and data.strip():
            return _from_json(data)
    except BadInput as error:
        raise BadInput(f"{name}: {error}; {_HOW}") from None
    return _refuse(data[:1], name)


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_number, parse_int=_within_64_bits)
    except UnicodeDecodeError:
        raise BadInput("it is neither a pickle nor JSON") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"it is damaged or cut off at line {error.lineno}, column {error.colno} of its JSON") from None
    except RecursionError:
        raise BadInput("its JSON is nested too deep") from None
    except ValueError:  # Python reads no number of more than 4300 digits
        raise BadInput("its JSON holds a number of thousands of digits") from None


def _within_64_bits(text: str) -> int:
    number = int(text)
    if number.bit_length() > 64:
        raise BadInput(f"its JSON holds {shown(number)}, which is beyond 64 bits: no size, address or time is")
    return number


def _no_number(text: str) -> NoReturn:
    raise BadInput(f"its JSON holds {text}, which is no number")


def _refuse(head: bytes, name: str) -> NoReturn:
    if head == _ZIP:
        raise BadInput(f"{name}: is a zip archive, as torch.save writes; {_HOW}")
    raise BadInput(f"{name}: is neither a pickle nor JSON of a snapshot; {_HOW}")
