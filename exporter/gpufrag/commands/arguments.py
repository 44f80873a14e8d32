"""Parsers of flags that several commands share."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput, UsageError
from ..units import format_bytes


def folder_name(text: str) -> Path:
    """Return the folder; for `units.argument`. Rejects an empty text, which would mean the working folder."""
    if not text:
        raise UsageError("DIR is empty; write . for the working folder")
    return Path(text)


def refuse_more_free_than_there_is(free: int | None, size: int | None) -> None:
    if free is not None and size is not None and free > size:
        raise UsageError(
            f"--driver-free ({format_bytes(free)}) is larger than the device ({format_bytes(size)}); "
            "check --driver-size"
        )


def release(text: str) -> str:
    """Return a torch release as written. Raises UsageError for an invalid one."""
    from ..model.settings import parse_release

    try:
        parse_release(text)
    except BadInput as error:
        raise UsageError(str(error)) from None
    return text
