"""A log file as lines: compressed or not, in any encoding, of any size; and the rank in a launcher's prefix."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import BadInput, Unavailable, unreadable_is_unavailable

STDIN = "-"
LONGEST = 1 << 16
"""Bytes of a line; a longer one is read in pieces of this size, all with its number."""
NAMES_APART = " / "
"""Separates the names of a source."""
_COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
_UNSUPPORTED = {b"\x28\xb5\x2f\xfd": "zstd -dc", b"PK\x03\x04": "unzip -p"}
_HEAD = 6
_SNAPSHOT = re.compile(rb"\x80[\x02-\x05]|\s{0,99}\{\s{0,99}\"(?:segments|device_traces)\"")
"""The beginning of a pickle, or of a snapshot in JSON."""
_TEXT = bytes({*range(256)} - {*range(1, 7), *range(14, 27), *range(28, 32)})
"""Bytes that logs have. Rotated logs can have zeros, and terminals use other control characters."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_PIECE = re.compile(
    r"[\s:]{0,8}(?:\[[^\[\]]{0,120}\]|\([^()]{0,120}\)|[\w.-]{0,60}[0-9](?:\.[\w.-]{1,60})?:(?= )"
    r"|[\w./-]{1,80}[ \t]{0,20}\|(?= )"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{8,18}(?:Z|[+-][0-9:]{4,5})?(?: std(?:out|err) [FP])?(?=\s)"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}"  # ctime, as mpirun --timestamp-output prints
    r"|[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [\w.-]{1,60} [\w./-]{1,60}\[[0-9]{1,10}\](?=:)"  # syslog and journald
    r"|[IWEF][0-9]{4} [0-9:.]{8,30} {1,9}[0-9]{1,10} [\w./-]{1,120}\.cc:[0-9]{1,6}\])"
)
"""One piece of what launchers print before a line."""
_SOURCES = (
    re.compile(r"\[([Rr]ank[ :]{0,2}\d{1,6})\]"),  # torch, Lightning, and what programs print themselves
    re.compile(r"^\[([A-Za-z][\w.-]{0,60}\d{1,4})\]$"),  # torchrun: its role and the local rank
    re.compile(r"\[((?:[\w.-]{1,80}@)?\d{1,5},\d{1,6})\]"),  # mpirun
    re.compile(r"\[(pod/[^\]]{1,120})\]"),  # kubectl logs --prefix
    re.compile(r"\(([^()]{0,60}pid=\d{1,10}[^()]{0,60})\)"),  # ray
    re.compile(r"^[A-Z][a-z]{2} [ 0-9]\d [\d:]{8} ([\w.-]{1,60} [\w./-]{1,60}\[\d{1,10}\])$"),  # syslog
    re.compile(r"^[IWEF]\d{4} \S{1,30} +(\d{1,10}) "),  # absl's threads, as JAX logs
    re.compile(
        r"^\s*(\d{1,5}|[A-Za-z][\w-]{0,60}\d(?:\.[\w.-]{1,60})?|[A-Za-z][\w.-]{0,60}\d|\d+\.\d+\.\d+\.\d+):$"
    ),  # srun --label; pdsh
    re.compile(r"^\s*([\w./-]{1,80})[ \t]{0,20}\|$"),  # docker compose
)
_IN_JSON = re.compile(
    r'^\s*\{.{0,2000}?"(?:(?:global_)?rank": ?"?(?=[0-9])|(?:log|msg|message)": ?"\[rank)([0-9]{1,6})'
)


class Line(NamedTuple):
    number: int
    source: str
    """The rank, pod or process that the launcher's prefix names; empty if there is none."""
    text: str


class _Mark(NamedTuple):
    piece: str
    end: int


def log_chunks(source: str, stdin: io.BufferedReader | None = None) -> Iterator[bytes]:
    """Yield lines, the longest in pieces of LONGEST bytes. `source` is a path, or "-" for `stdin` (default: sys.stdin).

    Raises Unavailable if the file cannot be read, BadInput if its compression is unknown or damaged.
    """
    name = "standard input" if source == STDIN else source
    hint = "name a job's log, or - for standard input"
    with unreadable_is_unavailable(name, "log", hint), _open(source, stdin) as file:
        try:
            lines = _decompressed(file, name)
            _refuse_other_files(lines, name)
            yield from _lines(lines)
        except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError):
            raise BadInput(
                f"{name}: its compressed stream is cut off or damaged; decompress the rest yourself"
            ) from None


def _open(source: str, stdin: io.BufferedReader | None) -> io.BufferedReader:
    if source != STDIN:
        return Path(source).open("rb")
    if stdin is None and sys.stdin is None:  # `<&-`
        raise Unavailable("standard input is closed; pipe a job's log into it, or name a file")
    return stdin or open(sys.stdin.fileno(), "rb", closefd=False)


def _decompressed(file: io.BufferedReader, name: str) -> io.BufferedReader[Any]:
    head = file.peek(_HEAD)[:_HEAD]
    tool = next((tool for magic, tool in _UNSUPPORTED.items() if head.startswith(magic)), None)
    if tool is not None:
        raise BadInput(f"{name}: is compressed; decompress it first, as in `{tool} FILE | gpufrag oom explain -`")
    opener = next((opener for magic, opener in _COMPRESSED.items() if head.startswith(magic)), None)
    return file if opener is None else io.BufferedReader(opener(file))


def _refuse_other_files(file: io.BufferedReader[Any], name: str) -> None:
    head = file.peek(1 << 12)[: 1 << 12]
    if _SNAPSHOT.match(head):
        raise BadInput(f"{name}: is a memory snapshot, not a log; use `gpufrag explain {name}`")
    if len(head.translate(None, _TEXT)) > 0.05 * len(head.strip(b"\0")):
        raise BadInput(f"{name}: is a binary file, not a log; name the job's log")


def _lines(file: io.BufferedReader[Any]) -> Iterator[bytes]:
    if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # as PowerShell writes
        with io.TextIOWrapper(file, encoding="utf-16", errors="replace", newline="") as text:
            yield from (line.encode() for line in iter(lambda: text.readline(LONGEST), ""))
    else:
        yield from iter(lambda: file.readline(LONGEST), b"")


def split(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield physical lines, numbered from 1; a bare CR (a progress bar) starts another line with the same number."""
    number = 1
    for chunk in chunks:
        for piece in chunk.rstrip(b"\r\n").split(b"\r"):
            yield number, piece
        number += chunk.endswith(b"\n")


def line_of(number: int, raw: bytes) -> Line:
    text = _COLOUR.sub("", raw.decode("utf-8", "replace"))
    return Line(number, _source(text), text)


def without_marks(text: str) -> str:
    """Return the rest of a continuation line after the launcher's prefix."""
    marks = takewhile(lambda mark: not mark.piece.startswith("(") or "pid=" in mark.piece, _marks(text))
    return text[max((mark.end for mark in marks), default=0) :].lstrip(": \t")


def _source(text: str) -> str:
    if (rank := _IN_JSON.match(text)) is not None:
        return f"rank{rank[1]}"
    marks = list(_marks(text))
    found = [name.group(1) for mark in marks for pattern in _SOURCES if (name := pattern.search(mark.piece))]
    return NAMES_APART.join(dict.fromkeys(found))


def _marks(text: str) -> Iterator[_Mark]:
    end = 0
    while (step := _PIECE.match(text, end)) is not None and end < 400:
        end = step.end()
        yield _Mark(step.group().lstrip(": \t").rstrip(), end)
