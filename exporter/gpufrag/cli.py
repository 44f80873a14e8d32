"""The table of commands, and the one place that turns errors into exit codes (2 usage, 1 failure)."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from . import __version__
from .errors import GpufragError, UsageError, one_line


class Command(NamedTuple):
    """One row: a module of `commands` with add_arguments(parser) and run(options) -> exit code."""

    name: str
    help: str
    example: str

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")


COMMANDS = (
    Command("run", "run a job with the agent inside it", "gpufrag run -- torchrun --nproc-per-node 8 train.py"),
    Command("install-agent", "copy the agent alone into a folder", "gpufrag install-agent /gpufrag"),
    Command("attach", "put the agent into a running process", "gpufrag attach 4711"),
    Command("serve", "the sidecar: publish all ranks on /metrics", "gpufrag serve --port 9836"),
    Command("measure", "every quantity of a saved snapshot", "gpufrag measure snapshot.pickle --limit 40GiB"),
    Command("oom", "why requests for GPU memory failed", "gpufrag oom list"),
    Command("check-config", "say what is wrong with a sidecar's config file", "gpufrag check-config gpufrag.yaml"),
    Command("healthcheck", "does the sidecar of this container answer?", "gpufrag healthcheck"),
    Command("doctor", "what keeps alerts and restarts from working here", "gpufrag doctor --kubernetes --namespace ml"),
    Command("restarter", "restart jobs that alerts ask for", "gpufrag restarter --config restarter.yaml"),
    Command("mixin", "rules, alerts and dashboards for Prometheus and Grafana", "gpufrag mixin build --out mixin"),
    Command("completion", "commands and flags for the shell's Tab key", "source <(gpufrag completion bash)"),
    Command("whatif", "a recorded trace under other settings", "gpufrag whatif snapshot.pickle --limit 40GiB"),
    Command("replay", "a recorded trace on the simulated allocator", "gpufrag replay trace.json.gz --limit 8GiB"),
    Command("simulate-fleet", "many simulated ranks, for load tests", "gpufrag simulate-fleet --jobs 9 --ranks 64"),
    Command("demo", "two simulated ranks, a real sidecar and a live table", "gpufrag demo --duration 20 --once"),
)


class Parser(argparse.ArgumentParser):
    """argparse, with errors that go the way of all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")

    def _print_message(self, message: str, file: Any = None) -> None:
        """In argparse's place, which passes over a disk that is full."""
        (file or sys.stderr).write(message)


class _Closed(io.TextIOBase):
    """Stands for a standard output that was closed (`>&-`): a job or a sidecar need none, who prints is told."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "is closed; send it to a file, or to /dev/null", "standard output")


class _Terminated(KeyboardInterrupt):
    """SIGTERM: what is half done is put in order, as at Ctrl-C."""


def _end_orderly() -> None:
    """Where SIGTERM is ignored it stays so, for the job that `run` becomes; what serves sets a handler of its own."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _print_whatever_comes() -> None:
    """A locale without UTF-8 shows a question mark for what it has not; a file's name goes out as the bytes it is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape" if sys.stdout.encoding.lower() == "utf-8" else "replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. No exception of ours, and no traceback, leaves this function."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if argv is None:
        _end_orderly()
    sys.stdout = sys.stdout or _Closed()
    _print_whatever_comes()
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)
    try:
        return _dispatch(arguments)
    except GpufragError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output (head, less) has left: nothing to say, and nobody to hear it
        return 1
    except _Terminated:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        return _fail(f"{error.filename or _nameless(error)}: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("GPUFRAG_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _fail(f"a fault in gpufrag itself ({what}); set GPUFRAG_TRACEBACK=1 and report what it prints", 1)


def _nameless(error: OSError) -> str:
    """All files that are written are named; what is not is the output."""
    return "standard output" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "system"


def _fail(text: str, code: int) -> int:
    with contextlib.suppress(OSError):  # a full disk: the code alone must tell it
        sys.stderr.write(f"gpufrag: {one_line(text)}\n")
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    parser = _parser(arguments[0] if arguments else None)
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:  # argparse itself would name the help of gpufrag, which lists no flags
            where = " ".join(filter(None, ("gpufrag", options.command)))
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)} (see '{where} --help')")
        if options.command is None:
            parser.print_help()
            return 2
        return int(options.run(options) or 0)
    finally:
        _flush()  # here, so that a closed pipe or a full disk is met inside main


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at the exit
        raise OSError(error.errno, error.strerror, "standard output") from None


def _parser(named: str | None) -> Parser:
    """The whole table for help, but only the named command's module is imported: start-up stays short."""
    parser = Parser(prog="gpufrag", description="Why a GPU with free memory still runs out of it.")
    parser.add_argument("--version", action="version", version=f"gpufrag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for row in COMMANDS:
        child = commands.add_parser(row.name, help=row.help, description=row.help, epilog=f"example: {row.example}")
        if row.name == named:
            module = importlib.import_module(f".commands.{row.module}", __package__)
            module.add_arguments(child)
            child.set_defaults(run=module.run, commands=COMMANDS)
    return parser
