"""Asks a Python of 3.14 or newer by its own way in, sys.remote_exec (PEP 768)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import Unavailable
from .target import Target

Execute = Callable[[int, str], None]


def find(target: Target, ours: tuple[int, int] = sys.version_info[:2], module: object = sys) -> Execute:
    """Python's function. Raises Unavailable where this Python or that one does not offer it."""
    wanted = ".".join(map(str, target.python))
    if ours != target.python:
        raise Unavailable(
            f"process {target.pid} runs Python {wanted}, which only a gpufrag under the same version may ask: "
            f"python{wanted} -m pip install gpufrag && python{wanted} -m gpufrag attach {target.pid}"
        )
    if target.environment.get("PYTHON_DISABLE_REMOTE_DEBUG"):
        raise Unavailable(f"process {target.pid} forbids it by PYTHON_DISABLE_REMOTE_DEBUG; begin it with gpufrag run")
    execute: Execute | None = getattr(module, "remote_exec", None)
    if execute is None:
        raise Unavailable(f"this Python {wanted} was built without sys.remote_exec; begin the job with gpufrag run")
    return execute


def ask(execute: Execute, pid: int, script: Path) -> None:
    """Have the process run the file `script` when it next may. Raises Unavailable."""
    try:
        execute(pid, str(script))
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(f"process {pid} was not asked, and goes on as before: {error}") from None
