"""Makes the interpreter of a running process run our code: with gdb, or from Python 3.14 on with sys.remote_exec."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import Unavailable
from ..wire.folder import write_file
from . import gdb
from .payload import NAME
from .target import REMOTE_EXEC, Target, functions

Execute = Callable[[int, str], None]
"""Python's sys.remote_exec (PEP 768)."""
Inject = Callable[[str, Path], None]
"""Makes the process run this code; the path is free for a file that the process can read."""


def injector(target: Target) -> Inject:
    """Raises Unavailable if there is no way in, before anything is done."""
    if target.python >= REMOTE_EXEC:
        execute = find_remote_exec(target)
        return lambda code, file: call_remote_exec(execute, target.pid, code, file)
    program, addresses = gdb.find(), functions(target.pid)
    return lambda code, file: gdb.run(program, target.pid, addresses, code)


def bootstrap(payload: Path, report: Path) -> str:
    """Return one line of Python that runs the payload in the program's main module.

    It binds no name there and raises nothing: an exception would surface at an arbitrary place of the program.
    """
    file, names = str(payload), {"__name__": NAME, "__file__": str(payload), "REPORT": str(report)}
    run = f"exec(compile((code.read(), code.close())[0], {file!r}, 'exec'), {names!r})"
    return f"try:\n (lambda code: {run})(open({file!r}, 'rb'))\nexcept BaseException:\n pass\n"


def find_remote_exec(target: Target, ours: tuple[int, int] = sys.version_info[:2], module: object = sys) -> Execute:
    """Raises Unavailable if this Python or the target's does not support it."""
    wanted = ".".join(map(str, target.python))
    if ours != target.python:
        raise Unavailable(
            f"process {target.pid} runs Python {wanted}, which requires a gpufrag under the same version: "
            f"python{wanted} -m pip install gpufrag && python{wanted} -m gpufrag attach {target.pid}"
        )
    if target.environment.get("PYTHON_DISABLE_REMOTE_DEBUG"):
        raise Unavailable(f"process {target.pid} has PYTHON_DISABLE_REMOTE_DEBUG set; start the job with gpufrag run")
    execute: Execute | None = getattr(module, "remote_exec", None)
    if execute is None:
        raise Unavailable(f"this Python {wanted} was built without sys.remote_exec; start the job with gpufrag run")
    return execute


def call_remote_exec(execute: Execute, pid: int, code: str, file: Path) -> None:
    """Raises Unavailable."""
    try:
        write_file(file, code.encode())  # its folder is the target's user's, who may race us
        execute(pid, str(file))
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(f"process {pid} did not take the request and continues unchanged: {error}") from None
