"""The functions that a program or library exports, read from its 64-bit little-endian ELF file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput
from ..wire.folder import open_plain

MAX_FILE = 512 << 20
MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SHARED, _DYNAMIC_SYMBOLS, _LOAD = 3, 11, 1


class Exports(NamedTuple):
    """`addresses` are as in the file; `first` is the address of the file's first byte."""

    machine: str
    first: int
    movable: bool
    addresses: dict[str, int]

    def at(self, name: str, start: int) -> int:
        """Return the address of `name` if the file's first byte is at `start`. Raises KeyError."""
        return self.addresses[name] + (start - self.first if self.movable else 0)


def exports(file: Path) -> Exports:
    """Raises BadInput for another or a broken file, OSError for one that cannot be read."""
    with open_plain(file) as opened:  # in the file system of the target, whose user may be hostile
        data = opened.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise BadInput(f"{file} is larger than {MAX_FILE >> 20} MiB")
    if data[:6] != b"\x7fELF\x02\x01":
        raise BadInput(f"{file}: not a 64-bit little-endian ELF file")
    try:
        kind, machine, _, _, programs, sections, _, _, size, count, _, section_count, _ = _HEADER.unpack_from(data)
        loads = [_PROGRAM.unpack_from(data, programs + place * size) for place in range(count)]
        first = min((address - offset for what, _, offset, address, *_ in loads if what == _LOAD), default=0)
        table = [_SECTION.unpack_from(data, sections + place * _SECTION.size) for place in range(section_count)]
        return Exports(MACHINES.get(machine, f"machine {machine}"), first, kind == _SHARED, _addresses(data, table))
    except (struct.error, IndexError, ValueError):
        raise BadInput(f"{file}: broken ELF file") from None


def _addresses(data: bytes, table: list[tuple[int, ...]]) -> dict[str, int]:
    found = {}
    for _, kind, _, _, offset, size, link, *_ in table:
        if kind == _DYNAMIC_SYMBOLS:
            names = table[link][4]
            for name, _, _, section, address, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                if section and address:
                    end = data.index(b"\0", names + name)
                    found[data[names + name : end].decode("ascii", "replace")] = address
    return found
