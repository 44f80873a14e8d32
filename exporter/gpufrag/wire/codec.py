"""Decodes JSON into dataclasses by their annotations: int, float, str, bool, records, `X | None`, tuple, list, dict.

All numbers are counts, sizes or times, so a negative one, or one above 64 bits, is refused. So is a tuple, list or dict
with more items than its annotation allows, as in `Annotated[tuple[X, ...], Most(8)]`.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from reprlib import repr as shown
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

from ..errors import BadInput, NewerVersion

Record = TypeVar("Record")


class Most(NamedTuple):
    """The maximum number of items, so that the writer of a file cannot choose how much a reader allocates."""

    items: int


class Misfit(Exception):
    """A value does not match its field's type; `path` leads to the field."""

    def __init__(self, what: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{'.'.join(self.path) or 'it'} {self.what}"

    def inside(self, place: str) -> Misfit:
        return Misfit(self.what, (place, *self.path))


def decode(kind: type[Record], data: bytes, name: str, schema: int, most: int) -> Record:
    """Decode a record of `kind`; `name` is for messages, `schema` is the newest known version.

    Raises BadInput if it is invalid or has more than `most` bytes, NewerVersion if a newer gpufrag wrote it.
    """
    if len(data) > most:
        raise BadInput(f"{name} has {len(data)} bytes (limit {most})")
    try:
        raw = loads(data)
    except (ValueError, RecursionError):
        raise BadInput(f"not a {name}: invalid JSON (incomplete, or not written by an agent)") from None
    if not isinstance(raw, dict) or type(raw.get("schema")) is not int or raw["schema"] < 1:
        raise BadInput(f"not a {name}: no schema number")
    if raw["schema"] > schema:
        raise NewerVersion(f"{name} has schema {raw['schema']}, this gpufrag reads up to {schema}; upgrade gpufrag")
    try:
        return read(kind, raw)
    except Misfit as misfit:
        raise BadInput(f"not a {name}: {misfit}") from None


def loads(data: bytes) -> Any:
    """Parse strict JSON in UTF-8. Raises ValueError, or RecursionError if it is nested too deeply."""
    return _STRICT.decode(data.decode())


def dumps(record: Any, indent: int | None = None) -> str:
    """Return strict JSON: a number that is infinite or undefined becomes null, as one that is unknown."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(record, indent=indent, separators=separators, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(record), indent=indent, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(kind: type[Record], raw: Any) -> Record:
    """Convert `raw` to a record of the dataclass `kind`, ignoring unknown keys. Raises Misfit."""
    annotation: Any = kind
    record: Record = _reader(annotation)(raw)
    return record


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that converts JSON to the annotated type `kind`; built once for each type."""
    if is_dataclass(kind):
        return _record_reader(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _bounded_reader(_reader(arguments[0]), arguments[1].items)
    if origin is types.UnionType:  # every union here has None
        *others, last = (_reader(each) for each in arguments if each is not types.NoneType)
        inner = _first_that_fits(others, last) if others else last
        return lambda raw: None if raw is None else inner(raw)
    if origin in (tuple, list):
        return _sequence_reader(origin, _reader(arguments[0]))
    if origin is dict:
        return _mapping_reader(_reader(arguments[1]))
    return {int: _read_int, float: _read_float, str: _read_text, bool: _read_bool}[kind]


def _first_that_fits(others: Sequence[Callable[[Any], Any]], last: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        for inner in others:
            with suppress(Misfit):
                return inner(raw)
        return last(raw)

    return read


def _bounded_reader(inner: Callable[[Any], Any], most: int) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        if isinstance(raw, (list, dict)) and len(raw) > most:
            raise Misfit(f"has {len(raw)} items (limit {most})")
        return inner(raw)

    return read


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    readers = {name: _reader(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}

    def read(raw: Any) -> Any:
        if type(raw) is not dict:
            raise Misfit(f"is a {type(raw).__name__}, not a record")
        values = _read_items(readers, [(name, raw[name]) for name in readers if name in raw])
        if missing := required - values.keys():
            raise Misfit(f"lacks {', '.join(sorted(missing))}")
        try:
            return kind(**values)
        except ValueError as error:
            raise Misfit(f"is invalid: {error}") from None

    return read


def _mapping_reader(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        if type(raw) is not dict:
            raise Misfit(f"is a {type(raw).__name__}, not a record")
        return _read_items(defaultdict(lambda: inner), [(_read_text(key), value) for key, value in raw.items()])

    return read


def _read_items(readers: Mapping[str, Callable[[Any], Any]], items: list[tuple[str, Any]]) -> dict[str, Any]:
    values = {}
    for name, value in items:
        try:
            values[name] = readers[name](value)
        except Misfit as misfit:
            raise misfit.inside(name[:40]) from None
    return values


def _sequence_reader(origin: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        if type(raw) is not list:
            raise Misfit(f"is a {type(raw).__name__}, not a list")
        return origin(map(inner, raw))

    return read


def _read_int(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 64:
        raise Misfit(f"is {shown(raw)}, not a whole number between 0 and 2^64")
    return raw


def _read_bool(raw: Any) -> bool:
    if type(raw) is not bool:
        raise Misfit(f"is a {type(raw).__name__}, not true or false")
    return raw


def _read_float(raw: Any) -> float:
    if type(raw) not in (int, float) or not 0 <= raw < 1 << 64:  # not a number and infinity fail here too
        raise Misfit(f"is {shown(raw)}, not a number between 0 and 2^64")
    return float(raw)


def _read_text(raw: Any) -> str:
    """JSON can contain half a surrogate pair, which cannot be encoded on output."""
    if type(raw) is not str:
        raise Misfit(f"is a {type(raw).__name__}, not a string")
    if not raw.isascii() and raw != raw.encode("utf-8", "replace").decode():
        raise Misfit("is not valid Unicode")
    return raw
