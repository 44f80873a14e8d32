"""Values as a panel writes them, and the colours that thresholds give them."""

from __future__ import annotations

import math
from typing import Any

COLOURS = {"green": "#73BF69", "red": "#F2495C", "blue": "#5794F2"}
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_SHORT = ("", " K", " Mil", " Bil")
_SECONDS = ((1e-6, 1e6, "µs"), (1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"))


def write(value: float, unit: str, decimals: int | None = None) -> str:
    if math.isnan(value):
        return "NaN"
    if unit == "bytes":
        return _scaled(value, 1024, _BYTES, " ", decimals)
    if unit == "percentunit":
        return f"{_number(value * 100, decimals)}%"
    if unit == "s":
        return _duration(value)
    if unit == "ops":
        return f"{_number(value, decimals)} ops/s"
    return _number(value, decimals) if unit == "none" else _scaled(value, 1000, _SHORT, "", decimals)


def _scaled(value: float, base: int, names: tuple[str, ...], gap: str, decimals: int | None) -> str:
    power = min(int(math.log(abs(value), base)), len(names) - 1) if abs(value) >= base else 0
    return f"{_number(value / base**power, decimals)}{gap}{names[power]}"


def _duration(value: float) -> str:
    for below, factor, name in _SECONDS:
        if abs(value) < below:
            return f"{_number(value * factor, None)} {name}"
    return f"{_number(value / 3600, None)} h"


def _number(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def colour_of(value: float, thresholds: dict[str, Any] | None) -> str:
    found = "green"
    for step in (thresholds or {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            found = step["color"]
    return COLOURS.get(found, found)
