"""A saved snapshot as the model takes it: the heap, and what the file knows of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadInput
from ..model.allocatable import Driver
from ..model.heap import Heap, parse
from ..model.settings import Settings
from .reading import load, name_of


class Saved(NamedTuple):
    heap: Heap
    driver: Driver
    """Of the JSON form with driver_free, driver_total and cap_bytes (0: no limit); torch itself dumps none of it."""
    knows_settings: bool
    """Whether the allocator's settings are recorded (torch >= 2.3), or were given."""


def read(source: str | Path, settings: Settings | None = None) -> Saved:
    """The snapshot in a file. `settings` stand in where it records none. Raises BadInput, Unavailable."""
    raw = load(source)
    try:
        return read_raw(raw, settings)
    except BadInput as error:
        raise BadInput(f"{name_of(source)}: {error}") from None


def read_raw(raw: Any, settings: Settings | None = None) -> Saved:
    """The same of what a file holds. Raises BadInput."""
    recorded = _recorded_settings(raw)
    heap = parse(raw | {"allocator_settings": recorded} if recorded else raw, settings)
    return Saved(heap, _driver(raw), bool(recorded or settings))


def _recorded_settings(raw: Any) -> Mapping[str, Any] | None:
    settings = raw.get("allocator_settings") or raw.get("settings") if isinstance(raw, Mapping) else None
    if settings and not isinstance(settings, Mapping):
        raise BadInput(f"its allocator settings are a {type(settings).__name__}, not a mapping: remove them")
    return settings or None


def _driver(raw: Any) -> Driver:
    if not isinstance(raw, Mapping):
        return Driver()
    free, size = size_of(raw, "driver_free"), size_of(raw, "driver_total")
    if free is not None and size is not None and free > size:
        raise BadInput(f"its driver_free is {free}, more than its driver_total, {size}: correct or remove them")
    return Driver(free, size, size_of(raw, "cap_bytes") or None)


def size_of(raw: Mapping[str, Any], key: str) -> int | None:
    """A size that the file may tell. Raises BadInput for what is none."""
    value = raw.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
        raise BadInput(f"its {key} is no size in bytes: remove it, or write a whole number")
    return value
