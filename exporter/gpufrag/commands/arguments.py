"""Parsers of flags that several commands share."""

from __future__ import annotations

from argparse import ArgumentTypeError, _ActionsContainer
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadInput, UsageError
from ..units import format_bytes, parse_memory

FOLDER_HELP = (
    "the agents' folder (default: $GPUFRAG_DIR, else /run/gpufrag if it exists, else gpufrag-UID in the temporary "
    "directory)"
)


def option(
    parser: _ActionsContainer, flag: str, metavar: str, text: str, read: Callable[[str], Any] = str, **more: Any
) -> None:
    """Add a flag with a value. `read` parses the value and may raise UsageError or BadInput."""

    def parsed(value: str) -> Any:
        try:
            return read(value)
        except (BadInput, UsageError) as error:
            raise ArgumentTypeError(str(error)) from None

    parser.add_argument(flag, metavar=metavar, help=text, type=parsed, **more)


def folder_name(text: str) -> Path:
    """Return the folder; for `units.argument`. Rejects an empty text, which would mean the working folder."""
    if not text:
        raise UsageError("DIR is empty; write . for the working folder")
    return Path(text)


def memory_limit(text: str) -> int:
    """Parse the memory limit of a process to bytes. Raises UsageError, also for 0."""
    if size := parse_memory(text):
        return size
    raise UsageError(f"a memory limit must be above 0, such as 40GiB (got {text.strip()})")


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
