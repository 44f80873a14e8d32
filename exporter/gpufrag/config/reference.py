"""Command-line flags and reference documentation, from declared settings."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from . import schema
from .schema import Setting


def add_flags(parser: argparse.ArgumentParser, kind: type[Any], keys: Collection[str] | None = None) -> None:
    """Add the flags that settings declare, those of `keys` only if given. `reader.load` checks their values."""
    for dotted, setting in _leaves(kind, ()):
        if not setting.flag or (keys is not None and dotted not in keys):
            continue
        shown = {True: "on", False: "off"}.get(setting.default) if setting.base is bool else _default(setting)
        default = "" if setting.default is None else f" (default: {shown})"
        first = setting.doc.partition(". ")[0].removesuffix(".")
        text = first[:1].lower() + first[1:] + default
        if setting.base is bool:
            parser.add_argument(
                setting.flag, dest=dotted, action=argparse.BooleanOptionalAction, default=None, help=text
            )
            continue
        metavar = {Path: "PATH", int: "N"}.get(
            setting.base, {"seconds": "TIME", "bytes": "SIZE"}.get(setting.unit, "TEXT")
        )
        read = _path if setting.base is Path else str
        parser.add_argument(setting.flag, dest=dotted, metavar=metavar, type=read, help=text)


def flag_values(options: argparse.Namespace, kind: type[Any]) -> dict[str, Any]:
    """Return the flags that the user gave, by dotted key."""
    given = vars(options)
    return {dotted: given[dotted] for dotted, _ in _leaves(kind, ()) if given.get(dotted) is not None}


def markdown(kind: type[Any], flags: Collection[str] | None = None) -> str:
    """Return one table per section. Flags are those of `add_flags(…, flags)`.

    A section with the keys of an earlier one lists only the rows that differ.
    """
    leaves = list(_leaves(kind, ()))
    parts = []
    listed: dict[tuple[str, ...], tuple[str, list[tuple[str, Setting]]]] = {}
    for section, text in _sections(kind, ()):
        rows = [(key, row) for key, row in leaves if key.rpartition(".")[0] == section]
        if not rows:
            continue
        first, known = listed.setdefault(tuple(row.name for _, row in rows), (section, rows))
        if first != section:
            pairs = zip(rows, (row for _, row in known), strict=True)
            rows = [(key, row) for (key, row), other in pairs if (row.doc, row.default) != (other.doc, other.default)]
            text += f" All other keys of `{first}` exist here too, with their own values."
        lines = [f"### `{section}`\n\n{text}\n"] if section else []
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        for key, row in rows:
            flag = f" Flag: `{row.flag}`." if row.flag and (flags is None or key in flags) else ""
            default = "required" if row.required else "" if row.default is None else f"`{_default(row)}`"
            cells = (f"`{key}`", row.expected(), default, (row.doc + flag).replace("|", "\\|"))
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _sections(kind: type[Any], above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The dotted name and the description of every section, the whole first."""
    yield ".".join(above), " ".join((kind.__doc__ or "").split())
    for setting in schema.settings(kind).values():
        if setting.section is not None:
            yield from _sections(setting.section, (*above, setting.name))


def _default(setting: Setting) -> str:
    return setting.shown(setting.default) or '""'


def _leaves(kind: type[Any], above: tuple[str, ...]) -> Iterator[tuple[str, Setting]]:
    for setting in schema.settings(kind).values():
        if setting.section is None:
            yield ".".join((*above, setting.name)), setting
        else:
            yield from _leaves(setting.section, (*above, setting.name))


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty path; write . for the working folder")
    return Path(text)
