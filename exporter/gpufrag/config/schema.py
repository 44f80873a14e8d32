"""How a setting declares its type, range, flag and documentation: in its annotation.

    request_timeout: Annotated[float, seconds(0.1, HOUR, "Time for a request and its answer.")] = 10.0

Settings are fields of frozen dataclasses, grouped into sections, which are dataclasses too.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def seconds(least: float, most: float, doc: str, flag: str = "") -> Meta:
    """A float, in seconds; users write `10s`, `1h30m` or `250ms`."""
    return Meta(ge=least, le=most, description=doc, extra={"unit": "seconds", "flag": flag})


def size(least: int, most: int, doc: str, flag: str = "") -> Meta:
    """An int, in bytes; users write `4MiB`."""
    return Meta(ge=least, le=most, description=doc, extra={"unit": "bytes", "flag": flag})


def in_range(least: float, most: float, doc: str, flag: str = "") -> Meta:
    """An int or a float in this range, both ends included."""
    return Meta(ge=least, le=most, description=doc, extra={"flag": flag})


def between(low: float, high: float, doc: str, flag: str = "") -> Meta:
    """A float in this range, both ends excluded."""
    return Meta(gt=low, lt=high, description=doc, extra={"flag": flag})


def about(doc: str, flag: str = "", secret: bool = False) -> Meta:
    """A setting without a range. The value of a secret one appears in no message."""
    return Meta(description=doc, extra={"flag": flag, "secret": secret})


@dataclass(frozen=True)
class Setting:
    """One declared field. `type` is its annotation; `section` is the dataclass it holds, if it is a section."""

    name: str
    type: Any
    base: Any
    meta: Meta
    optional: bool
    default: Any
    section: type[Any] | None

    @property
    def doc(self) -> str:
        return self.meta.description or ""

    @property
    def unit(self) -> str:
        return str((self.meta.extra or {}).get("unit", ""))

    @property
    def flag(self) -> str:
        return str((self.meta.extra or {}).get("flag", ""))

    @property
    def secret(self) -> bool:
        return bool((self.meta.extra or {}).get("secret"))

    @property
    def required(self) -> bool:
        return self.default is MISSING

    def expected(self) -> str:
        """Describe the values it accepts, as in `a duration from 100 ms to 1 h`."""
        origin = typing.get_origin(self.base)
        if origin is Literal:
            *rest, last = typing.get_args(self.base)
            return f"{', '.join(rest)} or {last}" if rest else str(last)
        if origin is tuple:
            return "a list such as [a, b]"
        if origin is Mapping:
            return "a mapping of text to text"
        unit = {"seconds": "a duration", "bytes": "a size"}.get(self.unit)
        return (unit or _NAMES.get(self.base, "a mapping")) + self._range()

    def shown(self, value: Any) -> str:
        """Write a value as the file would."""
        if value is None:
            return "not set"
        if self.unit:
            return _duration(value) if self.unit == "seconds" else _size(value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return f"[{', '.join(map(str, value))}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key}: {item}' for key, item in value.items())}}}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _range(self) -> str:
        if self.meta.gt is not None and self.meta.lt is not None:
            return f" between {self.shown(self.meta.gt)} and {self.shown(self.meta.lt)}"
        if self.meta.ge is not None and self.meta.le is not None:
            return f" from {self.shown(self.meta.ge)} to {self.shown(self.meta.le)}"
        return ""


def _duration(value: float) -> str:
    """Return the form a config file has: `250ms`, `1m5s`, `2h`."""
    rest, parts = round(value * 1000), []
    for scale, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")):
        count, rest = divmod(rest, scale)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def _size(value: int) -> str:
    """Return the form a config file has: `512MiB`."""
    power = next(power for power in (5, 4, 3, 2, 1, 0) if value % 1024**power == 0)
    return f"{value >> 10 * power}{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def settings(kind: type[Any]) -> dict[str, Setting]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: _setting(
            field.name,
            hints[field.name],
            field.default if field.default_factory is MISSING else field.default_factory(),
        )
        for field in fields(kind)
    }


def _setting(name: str, hint: Any, default: Any) -> Setting:
    inner, optional, metas = hint, False, []
    while True:
        origin, arguments = typing.get_origin(inner), typing.get_args(inner)
        if origin is Annotated:
            inner = arguments[0]
            metas += [meta for meta in arguments[1:] if isinstance(meta, Meta)]
        elif origin in (types.UnionType, typing.Union):  # only `X | None` is used
            inner, optional = arguments[0], True
        else:
            break
    section = inner if is_dataclass(inner) else None
    return Setting(name, hint, inner, metas[0] if metas else Meta(), optional, default, typing.cast(Any, section))
