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


_BOOTSTRAP = """
try:
    with open(__file__, "rb") as file:
        code = file.read()
    exec(compile(code, __file__, "exec"))
except BaseException as error:
    place = error.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    if isinstance(error, KeyboardInterrupt) or place.tb_frame.f_code.co_filename not in (__file__, "<gpufrag attach>"):
        raise
"""


def bootstrap(payload: Path, report: Path) -> str:
    """Return Python that runs the payload, and binds no name where it runs.

    It raises nothing but what a signal handler of the program raises meanwhile, which must reach the program.
    """
    names = {"__name__": NAME, "__file__": str(payload), "REPORT": str(report)}
    return f"exec(compile({_BOOTSTRAP!r}, '<gpufrag attach>', 'exec'), {names!r})\n"


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
