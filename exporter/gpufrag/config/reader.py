"""Read a YAML file and flags into a dataclass of settings. Every mistake is one line that names its place.

A section's `__post_init__` may raise UsageError for values that do not fit together. Its `UNSUPPORTED`, if it has one,
maps keys that other programs read to what to do instead.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..errors import BadInput, Unavailable, UsageError
from ..units import parse_bytes, parse_duration
from . import schema
from .schema import Setting

MAX_FILE_BYTES = 1 << 20
NO_FLAGS: Mapping[str, Any] = types.MappingProxyType({})
T = TypeVar("T")
Place = tuple[str, ...]
Problem = tuple[Place, str]


def load(kind: type[T], path: Path | None, flags: Mapping[str, Any] = NO_FLAGS) -> T:
    """Return the settings in the file at `path`, if any, with `flags` (by dotted key) taking precedence.

    Relative paths in the file start at the file's folder. Raises Unavailable if the file cannot be read, BadInput if
    it is not YAML, UsageError for unknown keys and wrong values, one line for each.
    """
    text = "" if path is None else _text(path)
    raw = _parse(text, path)
    reader = _Reader(Path() if path is None else path.parent)
    found = reader.section(kind, _with_flags({} if raw is None else raw, flags), ())
    if reader.problems:
        lines = _line_numbers(text)
        raise UsageError(*(_message(problem, path, lines, flags) for problem in reader.problems))
    return found  # type: ignore[return-value] # None only if there are problems


def check_keys(keys: Collection[Any], known: Collection[str], where: str) -> None:
    """Raise UsageError for the first key that is not known, with the most similar known one."""
    for key in keys:
        if key not in known:
            raise UsageError(unknown_key(str(key), known, where))


def unknown_key(key: str, known: Collection[str], where: str = "") -> str:
    near = difflib.get_close_matches(key.lower(), sorted(known), n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(sorted(known))}"
    return f'unknown key "{key[:40]}"{f" in {where}" if where else ""} ({hint})'


class _Reader:
    def __init__(self, base: Path) -> None:
        self._base = base
        self.problems: list[Problem] = []

    def section(self, kind: type[T], raw: Any, place: Place) -> T | None:
        where = ".".join(place)
        if not isinstance(raw, Mapping):
            expected = f"{where} must be a mapping of keys" if where else "expected a YAML mapping at the top level"
            self.problems.append((place, f"{expected}, found {_type_name(raw)}"))
            return None
        declared = schema.settings(kind)
        unsupported = getattr(kind, "UNSUPPORTED", {})
        before, values = len(self.problems), {}
        for key, value in raw.items():
            at = (*place, str(key))
            if key in declared:
                values[key] = self._value(declared[key], value, at)
            elif key in unsupported:
                self.problems.append((at, f"{'.'.join(at)} is not supported: {unsupported[key]}"))
            else:
                self.problems.append((at, unknown_key(str(key), declared, where)))
        for setting in declared.values():
            if setting.required and setting.name not in raw:
                self.problems.append((place, f"{'.'.join((*place, setting.name))} is required"))
        if len(self.problems) > before:
            return None
        try:
            return kind(**values)
        except UsageError as error:
            self.problems.append((place, str(error)))
            return None

    def _value(self, setting: Setting, raw: Any, place: Place) -> Any:
        if setting.section is not None:
            return self.section(setting.section, raw, place)
        try:
            value = raw
            if setting.unit and isinstance(raw, (str, int, float)) and not isinstance(raw, bool):
                value = (parse_duration if setting.unit == "seconds" else parse_bytes)(str(raw))
            return msgspec.convert(value, setting.type, dec_hook=self._path)
        except UsageError as error:
            problem = f"{'.'.join(place)}: {error}"
        except msgspec.ValidationError:
            scalar = isinstance(raw, (str, int, float)) and not setting.secret
            got = f"got {str(raw)[:40]!r}" if scalar else f"found {_type_name(raw)}"
            problem = f"{'.'.join(place)} must be {setting.expected()} ({got})"
        self.problems.append((place, problem))
        return None

    def _path(self, kind: type[Any], raw: Any) -> Any:
        if isinstance(raw, Path):
            return raw
        if not isinstance(raw, str) or not raw or not raw.isprintable():
            raise ValueError  # msgspec turns it into a ValidationError
        return self._base / raw


def _with_flags(raw: Any, flags: Mapping[str, Any]) -> Any:
    for dotted, value in flags.items():
        *above, last = dotted.split(".")
        inner = raw
        for key in above:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            raise UsageError(f"{'.'.join(above) or 'the config'} is not a mapping, so {dotted} cannot be set")
        inner[last] = value
    return raw


def _message(problem: Problem, path: Path | None, lines: Mapping[Place, int], flags: Mapping[str, Any]) -> str:
    place, text = problem
    if path is None or ".".join(place) in flags:
        return text
    line = f"line {lines[place]}: " if place in lines else ""
    return f"cannot read config {path}: {line}{text}"


def _type_name(raw: Any) -> str:
    """The value itself may be a secret that was put in the wrong place."""
    names = {str: "text", bool: "true or false", type(None): "nothing", list: "a list", dict: "a mapping"}
    return names.get(type(raw), "a number" if isinstance(raw, (int, float)) else f"a {type(raw).__name__}")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"cannot read config {path}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise BadInput(f"cannot read config {path}: larger than {MAX_FILE_BYTES >> 20} MiB, so it is not a config file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadInput(f"cannot read config {path}: not UTF-8 text") from None


def _parse(text: str, path: Path | None) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = f"{line}{error.problem}"
    except yaml.reader.ReaderError as error:
        line = f"line {text.count(chr(10), 0, error.position) + 1}: "
        problem = f"{line}the character U+{error.character:04X} is not allowed"
    except (yaml.YAMLError, ValueError, RecursionError):
        problem = "too deeply nested or malformed"
    raise BadInput(f"cannot read config {path}: not valid YAML: {problem}")


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: PyYAML would drop the first value silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                mark = node.value[place][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"key {key!s:.40} is given twice", mark)
        return super().construct_mapping(node, deep)


def _line_numbers(text: str) -> dict[Place, int]:
    """The line of each key, by key path."""
    lines: dict[Place, int] = {}

    def visit(node: yaml.Node | None, place: Place) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            at = (*place, str(key.value))
            lines[at] = key.start_mark.line + 1
            visit(value, at)

    visit(yaml.compose(text, yaml.SafeLoader), ())
    return lines
