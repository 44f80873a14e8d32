"""gpufrag attach PID: loads the agent into a running process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from ..attach.inject import bootstrap, injector
from ..attach.result import agent_socket, poll, read_report, report_path
from ..attach.target import PAYLOAD, REMOTE_EXEC, Caller, Target, examine
from ..errors import Unavailable, UsageError
from ..units import parse_duration
from .arguments import option

BUSY = "its main thread sleeps or is in a long call into C"
RISK = """Attach to process {pid} (Python {major}.{minor})?
A debugger stops the process for a moment, and the other ranks wait for it. It puts code into the interpreter, and
the main thread runs that code at its next safe point. All preconditions are checked. Still, a debugger in a running
job is a risk that `gpufrag run` does not have: save a checkpoint first if the job is valuable.
"""
SUCCESSES = {
    "waiting": "process {pid} does not use a GPU yet (no torch, or no CUDA so far); its agent starts when it does",
    "already": "process {pid} already has an agent",
}
FAILURES = {
    "disabled": "GPUFRAG_DISABLE=1 is set in it; nothing was started",
    "importing": "it is importing torch right now; try again in a few seconds",
    "interrupted": "the program received an exception of its own signal handler at that moment; attach again",
    "failed": "the agent could not start in it; the process continues without it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="pid of the training process, not of its launcher")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation, for scripts")
    text = "how long to wait for the process to answer (default: 20s)"
    option(parser, "--wait", "DURATION", text, parse_duration, default=20.0)


def run(options: argparse.Namespace) -> int:
    target = examine(options.pid, Caller.current())
    if target.environment.get("GPUFRAG_DISABLE") == "1":
        raise Unavailable(f"process {target.pid}: {FAILURES['disabled']}")
    if (listening := agent_socket(target)) is not None:
        raise Unavailable(f"process {target.pid} already has an agent: {listening}")
    inject = injector(target)
    if not (options.yes or _confirmed(target)):
        print("nothing was done", file=sys.stderr)
        return 1
    with report_path(target) as file:
        inject(bootstrap(PAYLOAD, file), file.with_name("ask.py"))
        try:
            report = poll(lambda: read_report(file), options.wait)
        except KeyboardInterrupt:
            print(f"gpufrag: process {target.pid} has not answered ({BUSY}); {_pending(target)}", file=sys.stderr)
            raise
    print(_outcome(target, report or {}, options.wait))
    return 0


def _confirmed(target: Target) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"cannot ask for confirmation to attach to process {target.pid}; add --yes")
    print(RISK.format(pid=target.pid, major=target.python[0], minor=target.python[1]), end="", file=sys.stderr)
    return input("Type yes to continue: ").strip().lower() in ("y", "yes")


def _outcome(target: Target, report: Mapping[str, str], seconds: float) -> str:
    """Return one line. Raises Unavailable unless there is an agent, or one that waits for a GPU."""
    state = report.get("state")
    if state in SUCCESSES:
        return SUCCESSES[state].format(pid=target.pid)
    if state == "begun":
        found = poll(lambda: agent_socket(target), seconds)
        where = f"at {found}" if found else "but it has not published yet; check that its folder is writable"
        return f"process {target.pid} has an agent now, {where}"
    if state in FAILURES:
        raise Unavailable(f"process {target.pid}: {FAILURES[state]} ({report.get('error', 'see its stderr')})")
    raise Unavailable(
        f"process {target.pid} did not reach a safe point within {seconds:g} s: {BUSY}; {_pending(target)}"
    )


def _pending(target: Target) -> str:
    if target.python >= REMOTE_EXEC:
        return "the request is withdrawn"
    return "the request stays and is carried out later"
