"""A log file as lines of bytes: packed or not, in any encoding, of any size."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from ..errors import BadInput, Unavailable
from .lines import LONGEST

STDIN = "-"
_PACKED: dict[bytes, Callable[[BinaryIO], IO[bytes]]] = {
    b"\x1f\x8b": lambda file: cast("IO[bytes]", gzip.GzipFile(fileobj=file)),
    b"BZh": lambda file: cast("IO[bytes]", bz2.BZ2File(file)),
    b"\xfd7zXZ": lambda file: cast("IO[bytes]", lzma.LZMAFile(file)),  # noqa: SIM115
}
_REFUSED = {b"\x28\xb5\x2f\xfd": "zstd -dc", b"PK\x03\x04": "unzip -p"}
_HEAD = 6


def log_chunks(source: str, stdin: io.BufferedReader | None = None) -> Iterator[bytes]:
    """Lines, the longest in pieces of LONGEST bytes. `source` is a path, or "-" for `stdin` (default: our own).

    Raises Unavailable for what cannot be read, BadInput for what is packed in a way that is not known, or damaged.
    """
    name = "standard input" if source == STDIN else source
    try:
        with _open(source, stdin) as file:
            yield from _unpacked(file, name)
    except IsADirectoryError:
        raise Unavailable(f"{name}: is a directory; name the log file inside it") from None
    except FileNotFoundError:
        raise Unavailable(f"{name}: no such file; name a job's log, or - for standard input") from None
    except PermissionError:
        raise Unavailable(f"{name}: permission denied; make it readable for you (chmod, or a copy)") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError):
        raise BadInput(f"{name}: its packed stream is cut off or damaged; unpack what is left of it yourself") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte in it
        raise Unavailable(f"{name!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _open(source: str, stdin: io.BufferedReader | None) -> io.BufferedReader:
    if source != STDIN:
        return Path(source).open("rb")
    if stdin is None and sys.stdin is None:  # `<&-`
        raise Unavailable("standard input: is closed; pipe a job's log into it, or name a file")
    return stdin or open(sys.stdin.fileno(), "rb", closefd=False)


def _unpacked(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    head = file.peek(_HEAD)[:_HEAD]
    tool = next((tool for magic, tool in _REFUSED.items() if head.startswith(magic)), None)
    if tool is not None:
        raise BadInput(f"{name}: is packed; unpack it first, as in `{tool} FILE | gpufrag oom explain -`")
    unpack = next((unpack for magic, unpack in _PACKED.items() if head.startswith(magic)), None)
    plain = file if unpack is None else io.BufferedReader(cast("io.RawIOBase", unpack(file)))
    yield from _lines(plain)


def _lines(file: io.BufferedReader[Any]) -> Iterator[bytes]:
    if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # as PowerShell writes
        with io.TextIOWrapper(file, encoding="utf-16", errors="replace", newline="") as text:
            yield from (line.encode() for line in iter(lambda: text.readline(LONGEST), ""))
    else:
        yield from iter(lambda: file.readline(LONGEST), b"")
