"""Fields of a request on the control socket, of the type and size that they must have. Each raises UsageError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

LONGEST_S = 3600.0
"""For which anybody can make the trainer wait."""
LONGEST_TEXT = 100


def text(request: Mapping[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_TEXT:
        raise UsageError(f"{key}: a text of up to {LONGEST_TEXT} characters belongs here")
    return value


def whole(request: Mapping[str, Any], key: str) -> int:
    value = request.get(key)
    if type(value) is not int or value < 0:
        raise UsageError(f"{key}: a whole number belongs here")
    return value


def seconds(request: Mapping[str, Any], key: str) -> float:
    value = request.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LONGEST_S:
        raise UsageError(f"{key}: seconds from 0 to {LONGEST_S:g} belong here")
    return float(value)
