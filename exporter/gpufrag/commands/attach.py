"""gpufrag attach PID: the agent, in a process that already runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ..attach import gdb, remote_exec
from ..attach.answer import agent_socket, place_for_report, report, until
from ..attach.bootstrap import bootstrap
from ..attach.permission import Caller
from ..attach.target import PAYLOAD, REMOTE_EXEC, Target, examine, functions
from ..errors import Unavailable, UsageError
from ..units import argument, parse_duration
from ..wire.folder import write_file

BUSY = "its main thread sleeps, or is in a long call into C"
Ask = Callable[[str, Path], None]
"""Has the process run this code; the file is a place for it that the process can read."""

RISK = """Attach to process {pid} (Python {major}.{minor})?
The process stands still for a moment (a debugger stops it; of all its ranks the others wait that long), and code is put
into its interpreter, to be run by its main thread at its next safe point. What speaks against it has been looked for.
Still, a debugger in a running job is a risk that `gpufrag run` does not have: save a checkpoint first if it is dear.
"""
OUTCOMES = {
    "waiting": "process {pid} uses no GPU yet (no torch, or no CUDA so far): its agent begins when it does",
    "already": "process {pid} already has an agent",
}
REFUSALS = {
    "disabled": "GPUFRAG_DISABLE=1 is set in it; nothing was begun",
    "importing": "it is just importing torch; ask again in a few seconds",
    "failed": "the agent could not begin in it, and it goes on without",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="of the training process itself, not of its launcher")
    parser.add_argument(
        "--yes", action="store_true", help="do not ask; for scripts that know the risk to a running job"
    )
    parser.add_argument(
        "--wait", metavar="SECONDS", type=argument(parse_duration), default=20.0, help="for its answer (20)"
    )


def run(options: argparse.Namespace) -> int:
    target = examine(options.pid, Caller.current())
    if target.environment.get("GPUFRAG_DISABLE") == "1":
        raise Unavailable(f"process {target.pid}: {REFUSALS['disabled']}")
    if (listening := agent_socket(target)) is not None:
        raise Unavailable(f"process {target.pid} already has an agent: {listening}")
    ask = way(target)
    if not (options.yes or _agreed(target)):
        print("nothing was done", file=sys.stderr)
        return 1
    with place_for_report(target) as file:
        ask(bootstrap(PAYLOAD, file), file.with_name("ask.py"))
        try:
            told = until(lambda: report(file), options.wait)
        except KeyboardInterrupt:
            print(
                f"gpufrag: process {target.pid} is asked already ({BUSY}); the request {_then(target)}", file=sys.stderr
            )
            raise
    print(_outcome(target, told or {}, options.wait))
    return 0


def way(target: Target) -> Ask:
    """How this Python is asked. Raises Unavailable where that cannot be, before anything is done."""
    if target.python >= REMOTE_EXEC:
        execute = remote_exec.find(target)
        return lambda code, file: remote_exec.ask(execute, target.pid, _written(file, code))
    program, addresses = gdb.find(), functions(target.pid)
    return lambda code, file: gdb.ask(program, target.pid, addresses, code)


def _written(file: Path, code: str) -> Path:
    """For a process of another user too: the folder is that user's, and closed to all others."""
    write_file(file, code.encode())
    return file


def _agreed(target: Target) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"nobody is here to be asked whether process {target.pid} may be touched; say --yes")
    print(RISK.format(pid=target.pid, major=target.python[0], minor=target.python[1]), end="", file=sys.stderr)
    return input("Type yes to go on: ").strip().lower() in ("y", "yes")


def _outcome(target: Target, told: Mapping[str, str], seconds: float) -> str:
    """One line. Raises Unavailable where there is no agent, and none that waits."""
    state = told.get("state")
    if state in OUTCOMES:
        return OUTCOMES[state].format(pid=target.pid)
    if state == "begun":
        found = until(lambda: agent_socket(target), seconds)
        where = f"at {found}" if found else "but has not published yet (is its folder writable?)"
        return f"process {target.pid} has an agent now, {where}"
    if state in REFUSALS:
        raise Unavailable(f"process {target.pid}: {REFUSALS[state]} ({told.get('error', 'see its stderr')})")
    raise Unavailable(
        f"process {target.pid} has not come to a safe point within {seconds:g} s: {BUSY}; the request {_then(target)}"
    )


def _then(target: Target) -> str:
    """What becomes of a request that nobody waits for any more."""
    return "is withdrawn" if target.python >= REMOTE_EXEC else "stays, and is carried out when that ends"
