"""YAML into frozen dataclasses: every key is known, every value has its type, every error names its place.

A field's annotation says what its value must look like: `Seconds` and `Bytes` are written as people write them
(`10s`, `4MiB`), `Path` counts from the folder of the file, `Count` is at least 1. A record's UNSERVED, where it has
one, names keys that other programs know: they are refused with what to do instead.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ..errors import BadInput, Unavailable, UsageError
from ..units import parse_bytes, parse_duration

Seconds = Annotated[float, "a duration above 0"]
Bytes = Annotated[int, "a size above 0"]
Count = Annotated[int, "a whole number from 1 up"]

MAX_BYTES = 1 << 20  # no config comes near; what does was named by mistake

T = TypeVar("T")


def load(kind: type[T], path: Path) -> T:
    """The record in the YAML file at `path`; an empty file is all defaults.

    Raises Unavailable where it cannot be read, BadInput where it is not YAML, UsageError for a wrong key or value.
    """
    raw = _parse(_text(path), path)
    try:
        return read(kind, {} if raw is None else raw, path.parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def read(kind: type[T], raw: Any, base: Path = Path(), where: str = "") -> T:
    """`raw`, as YAML gives it, as a record; raises UsageError that names the key by its path."""
    if not isinstance(raw, Mapping):
        raise UsageError(f"{where or 'the whole'} is {_shown(raw)}: a mapping of keys belongs here")
    every = typing.get_type_hints(kind, include_extras=True)
    hints = {field.name: every[field.name] for field in fields(kind)}  # type: ignore[arg-type]
    check_keys(raw, hints, where, getattr(kind, "UNSERVED", {}))
    values = {key: _value(hints[key], value, base, _join(where, key)) for key, value in raw.items()}
    missing = [field.name for field in fields(kind) if _is_required(field) and field.name not in values]  # type: ignore[arg-type]
    if missing:
        belong = "is missing" if len(missing) == 1 else "are missing"
        raise UsageError(f"{' and '.join(_join(where, name) for name in missing)} {belong}")
    return kind(**values)


def check_keys(
    keys: Iterable[Any], known: Iterable[str], where: str, unserved: Mapping[str, str] = types.MappingProxyType({})
) -> None:
    """Raises UsageError for the first key that is not known, and names the nearest that is.

    `unserved` are keys that others know and that are refused here, each with what to do instead.
    """
    known = sorted(known)
    for key in keys:
        if key in unserved:
            raise UsageError(f"{_join(where, key)} is not served by gpufrag: {unserved[key]}")
        if key not in known:
            raise UsageError(f"{_join(where, key)} is not a key; {_suggestion(str(key), known)}")


def _suggestion(key: str, known: list[str]) -> str:
    import difflib  # only an error needs it

    near = difflib.get_close_matches(key.lower(), known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _value(kind: Any, raw: Any, base: Path, where: str) -> Any:
    if is_dataclass(kind):
        return read(typing.cast("type[Any]", kind), raw, base, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # only `X | None` is used; with Annotated it is the second
        if raw is None and not is_dataclass(arguments[0]):  # whoever has begun a record means to fill it
            return None
        return _value(arguments[0], raw, base, where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise UsageError(f"{where} is {_shown(raw)}: a list belongs here")
        return tuple(_value(arguments[0], item, base, f"{where}[{i}]") for i, item in enumerate(raw))
    if origin is Mapping:
        return _mapping(arguments[1], raw, base, where)
    return _scalar(kind, raw, base, where)


def _mapping(kind: Any, raw: Any, base: Path, where: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise UsageError(f"{where} is {_shown(raw)}: a mapping belongs here")
    return {str(key): _value(kind, item, base, _join(where, key)) for key, item in raw.items()}


def _scalar(kind: Any, raw: Any, base: Path, where: str) -> Any:
    if kind is Path and isinstance(raw, str):
        return _path(raw, base, where)
    if kind in (Seconds, Bytes):
        return _quantity(kind, raw, where)
    if kind == Count and type(raw) is int and raw >= 1:
        return raw
    if kind is float and type(raw) is int:
        return float(raw)
    if type(raw) is not kind:
        raise UsageError(f"{where} is {_shown(raw)}: {_EXPECTED.get(kind, 'another type')} belongs here")
    return raw


def _path(raw: str, base: Path, where: str) -> Path:
    if not raw or "\0" in raw or not raw.isprintable():
        raise UsageError(f"{where} is {'empty' if not raw else 'no path'}: the path of a file or folder belongs here")
    return base / raw


_EXPECTED = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    Count: "a whole number from 1 up",
}


def _quantity(kind: Any, raw: Any, where: str) -> Any:
    parse = parse_duration if kind == Seconds else parse_bytes
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise UsageError(f"{where} is {_shown(raw)}: write {'10s' if kind == Seconds else '4MiB'}, or the like")
    try:
        value = parse(str(raw))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if value <= 0:
        raise UsageError(f"{where} is {_shown(raw)}: it must be above 0")
    return value


def _shown(raw: Any) -> str:
    """The value's type only: a misplaced value may be a secret."""
    names = {str: "a text", bool: "true or false", type(None): "empty", list: "a list", dict: "a mapping"}
    return names.get(type(raw), "a number" if isinstance(raw, (int, float)) else f"a {type(raw).__name__}")


def _join(where: str, key: Any) -> str:
    text = str(key)
    return f"{where}.{text[:40]}" if where else text[:40]


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; give a file that can be read") from None
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path}: over {MAX_BYTES >> 20} MiB: not a config file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not YAML: it is no UTF-8 text") from None


def _parse(text: str, path: Path) -> Any:
    import yaml  # a sidecar without a config file does without

    try:
        return yaml.load(text, _strict_loader())
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise BadInput(f"{path}: not YAML: {line}{error.problem}") from None
    except yaml.reader.ReaderError as error:
        place = text.count("\n", 0, error.position) + 1
        what = f"U+{error.character:04X}, a character that may not be there"
        raise BadInput(f"{path}: not YAML: line {place}: {what}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise BadInput(f"{path}: not YAML") from None


def _strict_loader() -> Any:
    """PyYAML's safe loader, but a key that is given twice is an error: the first would be lost in silence."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            for place, key in enumerate(keys):
                if key in keys[:place]:
                    mark = node.value[place][0].start_mark
                    raise yaml.constructor.ConstructorError(None, None, f"key {key!s:.40} is given twice", mark)
            return super().construct_mapping(node, deep)

    return Loader
