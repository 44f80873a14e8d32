"""The command line: parse, run one command, turn errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from . import __version__
from .commands import COMMANDS
from .errors import GpufragError, UsageError, one_line


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError and reports a failed write."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own method ignores a full disk
        (file or sys.stderr).write(message)


class _ClosedOutput(io.TextIOBase):
    """Replaces a closed standard output (`>&-`): a job or a sidecar runs without one, a command that prints fails."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "is closed; redirect it to a file or /dev/null", "standard output")


class _Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C so that cleanup runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for wrong usage, 1 for a failure. Raises nothing of ours."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if (
        argv is None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):  # an ignored SIGTERM stays ignored for `run`
        signal.signal(signal.SIGTERM, _raise_terminated)
    _prepare_streams()
    try:
        return _dispatch(arguments)
    except GpufragError as error:
        return _fail(error.exit_code, *error.args)
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        return 1
    except _Terminated:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        return _fail(1, f"{error.filename or _unnamed_target(error)}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("GPUFRAG_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _fail(1, f"internal error ({what}); set GPUFRAG_TRACEBACK=1 and report the traceback")


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _prepare_streams() -> None:
    sys.stdout = sys.stdout or _ClosedOutput()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # file names may hold bytes that are not UTF-8; other encodings lack characters that we print
        sys.stdout.reconfigure(errors="surrogateescape" if sys.stdout.encoding.lower() == "utf-8" else "replace")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)


def _unnamed_target(error: OSError) -> str:
    # every file that a command writes is named in its error, so a full disk without a name is the output's
    return "standard output" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "system"


def _fail(code: int, *lines: object) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"gpufrag: {one_line(str(line))}\n" for line in lines))
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    _require_known_command(arguments)
    parser = _parser(arguments[0] if arguments else None)
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:  # argparse would point to the top-level help, which lists no flags
            command = " ".join(filter(None, ("gpufrag", options.command)))
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)} (see '{command} --help')")
        if options.command is None:
            parser.print_help()
            return 2
        return int(options.run(options) or 0)
    finally:
        _flush_output()


def _require_known_command(arguments: Sequence[str]) -> None:
    names = [row.name for row in COMMANDS]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in names:
        close = difflib.get_close_matches(arguments[0], names, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "see 'gpufrag --help'"
        raise UsageError(f"unknown command '{arguments[0]}' ({hint})")


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
        raise OSError(error.errno, error.strerror, "standard output") from None


def _parser(command: str | None) -> Parser:
    """Build the parser for all commands, but import only the module of `command`: start-up stays short."""
    parser = Parser(
        prog="gpufrag",
        description="Explain, watch and fix GPU memory "
        "fragmentation. The agent runs inside the processes of a job and records their memory. The sidecar (gpufrag "
        "serve) exports the figures of all ranks of a host. The restarter restarts jobs when an alert fires.",
    )
    parser.add_argument("--version", action="version", version=f"gpufrag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for row in COMMANDS:
        child = commands.add_parser(row.name, help=row.help, description=row.help, epilog=f"example: {row.example}")
        if row.name == command:
            module = importlib.import_module(f".commands.{row.module}", __package__)
            module.add_arguments(child)
            child.set_defaults(run=module.run)
    return parser
