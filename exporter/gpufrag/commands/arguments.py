"""What several commands read from their flags in one way."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput, UsageError
from ..units import format_bytes


def folder_name(text: str) -> Path:
    """For `units.argument`. An empty one, as of a variable that is not set, would be the working folder."""
    if not text:
        raise UsageError("an empty DIR names no folder; write . for the working folder")
    return Path(text)


def refuse_more_free_than_there_is(free: int | None, size: int | None) -> None:
    """Of --driver-free and --driver-size, in bytes. Raises UsageError."""
    if free is not None and size is not None and free > size:
        raise UsageError(
            f"--driver-free is {format_bytes(free)}, of a device of {format_bytes(size)}: it must be less "
            "(see --driver-size)"
        )


def release(text: str) -> str:
    """A release of torch, as it is written; raises UsageError for what is none."""
    from ..model.settings import parse_release

    try:
        parse_release(text)
    except BadInput as error:
        raise UsageError(str(error)) from None
    return text
