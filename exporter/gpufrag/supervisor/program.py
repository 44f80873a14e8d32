"""Whether a command could be started once more: what it was started from may have been replaced since."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress

LONGEST_FIRST_LINE = 256
"""Bytes of a script that the kernel reads to find its interpreter."""


def obstacle(command: str, environment: Mapping[str, str]) -> str | None:
    """What is missing, and what to do; None where nothing is. Looked for as `subprocess.Popen` would."""
    path = shutil.which(command, path=os.pathsep.join(os.get_exec_path(environment)))
    if path is None:
        return f"{command!r} is gone, or may not be executed; put it back"
    interpreter = _interpreter(path)
    if interpreter is not None and not os.access(interpreter, os.X_OK):
        return f"{interpreter!r}, the interpreter of {path!r}, is gone, or may not be executed; put it back"
    return None


def _interpreter(path: str) -> str | None:
    """What `#!` names; None of a program that is no script, or may not be read."""
    with suppress(OSError), open(path, "rb") as program:
        first = program.readline(LONGEST_FIRST_LINE)
        if first.startswith(b"#!") and (words := first[2:].split()):
            return os.fsdecode(words[0])
    return None
