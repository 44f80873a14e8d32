"""Sizes and durations as people write them: `40GiB`, `512MiB`, `1500`, `250ms`, `1h30m`.

Inside gpufrag a size is a whole number of bytes and a duration is in seconds; flags, config and reports use this
module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from .errors import UsageError

T = TypeVar("T")

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([kmgtp]?)(i?)(b?)", re.IGNORECASE)
_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?(ms|min|s|m|h|d)")
_MOST_BYTES = 1 << 62


def parse_bytes(text: str) -> int:
    """Parse `40GiB` or `40Gi` (powers of 1024), `40GB` (powers of 1000) or `42949672960` to bytes, rounded down.

    Raises UsageError, also for a bare letter (`40G`): tools disagree whether it is a power of 1000 or 1024.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{_shown(text)} is not a size; write bytes or a unit, as in 40GiB, 512MiB or 42949672960")
    number, letter, binary, byte = found.groups()
    if letter and not binary and not byte:
        letter = letter.upper()
        raise UsageError(f"{_shown(text)} is ambiguous; write {number}{letter}iB (1024) or {number}{letter}B (1000)")
    size = int(Decimal(number) * (1024 if binary else 1000) ** _POWERS[letter.lower()])
    if size > _MOST_BYTES:
        raise UsageError(f"{_shown(text)} is larger than any memory; the maximum is 4096PiB")
    return size


def parse_memory(text: str) -> int:
    """Parse a size of GPU memory to bytes: 0, or at least 1 MiB, since `40` usually lacks a unit. Raises UsageError."""
    size = parse_bytes(text)
    if 0 < size < 1 << 20:
        raise UsageError(f"{_shown(text)} is only {format_bytes(size)}; add a unit, as in {text.strip()}GiB")
    return size


def format_bytes(size: float) -> str:
    """Format as `1.50 GiB`: three significant digits, powers of 1024; whole bytes below 1 KiB."""
    power = 0
    scaled = float(abs(size))
    while scaled >= 999.5 and power < len(_BINARY) - 1:
        scaled /= 1024
        power += 1
    sign = "-" if size < 0 else ""
    return f"{sign}{_three_digits(scaled) if power else round(scaled)} {_BINARY[power]}"


def parse_duration(text: str) -> float:
    """Parse `20`, `20s`, `250ms`, `5m` or `1h30m` to seconds. Raises UsageError."""
    rest = text.strip().lower()
    if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?", rest):
        return float(rest)
    parts = _PART.findall(rest)
    if not parts or _PART.sub("", rest).strip():
        raise UsageError(f"{_shown(text)} is not a duration; write seconds or a unit, as in 20, 250ms, 5m or 1h30m")
    return float(sum((Decimal(number) * _SECONDS[unit] for number, unit in parts), Decimal(0)))


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers within these bounds (inclusive); it raises UsageError."""

    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text.strip()) else None
        if number is None or number < least or (most is not None and number > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"{_shown(text)} is not a whole number {bounds}")
        return number

    return parse


def format_duration(seconds: float) -> str:
    """Format as `0.26 ms`, `20 s` or `1 h 30 min`: at most two units."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    for scale, unit in ((1e-6, "µs"), (1e-3, "ms")):
        if seconds < scale * 999.5:
            return f"{_three_digits(seconds / scale)} {unit}"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    return _two_units(round(seconds))


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` for argparse's `type=`: its errors then name the flag."""
    import argparse  # here: the agent imports units too, and a training job needs no flags of ours

    def read(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _two_units(seconds: int) -> str:
    """Format whole seconds from a minute up: `2 min 5 s`, `3 d 4 h`."""
    names = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    first = next(index for index, (_, scale) in enumerate(names) if seconds >= scale)
    (name, scale), (small_name, small) = names[first], names[first + 1]
    rest = seconds % scale // small
    return f"{seconds // scale} {name}" + (f" {rest} {small_name}" if rest else "")


def _three_digits(value: float) -> str:
    """1.5 -> 1.50, 24.2 -> 24.2, 104.4 -> 104; trailing zeros keep columns aligned."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}…")
