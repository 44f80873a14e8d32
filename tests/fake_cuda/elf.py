"""The dynamic symbols of a shared library: what it needs, from which libraries, and what it defines."""

import struct
from pathlib import Path
from typing import NamedTuple

_DYNAMIC, _DYNSYM, _VERNEED = 6, 11, 0x6FFFFFFE
_NEEDED = 1


class Import(NamedTuple):
    """A symbol that the library does not define. `home` and `version` are None for an unversioned one."""

    name: str
    home: str | None
    version: str | None


class Symbols(NamedTuple):
    needed: tuple[str, ...]
    imports: tuple[Import, ...]
    exports: frozenset[str]


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


def read_symbols(path: Path) -> Symbols:
    """Raises ValueError for a file that is not a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"not a 64-bit ELF file: {path}")
    sections = _sections(data)
    needed: list[str] = []
    imports: list[Import] = []
    exports: set[str] = set()
    versions = _imported_versions(data, sections)
    indexes = next((s for s in sections if s.kind == 0x6FFFFFFF), None)
    for section in sections:
        strings = sections[section.link].offset if section.link < len(sections) else 0
        content = data[section.offset : section.offset + section.size]
        if section.kind == _DYNAMIC:
            for tag, value in struct.iter_unpack("<QQ", content):
                if tag == _NEEDED:
                    needed.append(_text(data, strings + value))
        elif section.kind == _DYNSYM:
            for index, entry in enumerate(struct.iter_unpack("<IBBHQQ", content)):
                name = _text(data, strings + entry[0])
                if entry[3]:
                    exports.add(name)
                elif name:
                    version = struct.unpack_from("<H", data, indexes.offset + 2 * index)[0] if indexes else 0
                    imports.append(Import(name, *versions.get(version & 0x7FFF, (None, None))))
    return Symbols(tuple(needed), tuple(imports), frozenset(exports))


def _sections(data: bytes) -> list[_Section]:
    start, size, count = (struct.unpack_from(form, data, at)[0] for form, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    rows = (struct.unpack_from("<IIQQQQI", data, start + index * size) for index in range(count))
    return [_Section(kind, offset, length, link) for _, kind, _, _, offset, length, link in rows]


def _imported_versions(data: bytes, sections: list[_Section]) -> dict[int, tuple[str, str]]:
    """(library, version name) by version index."""
    found = {}
    for section in sections:
        if section.kind != _VERNEED:
            continue
        strings, at = sections[section.link].offset, section.offset
        while True:
            _, count, file, first, following = struct.unpack_from("<HHIII", data, at)
            entry = at + first
            for _ in range(count):
                _, _, index, name, further = struct.unpack_from("<IHHII", data, entry)
                found[index] = (_text(data, strings + file), _text(data, strings + name))
                entry += further
            if not following:
                break
            at += following
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")
