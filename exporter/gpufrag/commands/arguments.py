"""What several commands read from their flags in one way."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError


def folder_name(text: str) -> Path:
    """For `units.argument`. An empty one, as of a variable that is not set, would be the working folder."""
    if not text:
        raise UsageError("an empty DIR names no folder; write . for the working folder")
    return Path(text)
