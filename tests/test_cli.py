"""The command line: exit codes, one-line errors, and imports only of the command that runs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import gpufrag
from gpufrag import cli
from gpufrag.commands import Command
from gpufrag.errors import BadInput, GpufragError, Unavailable, UsageError
from helpers import TESTS

NAMES = [row.name for row in cli.COMMANDS]
RegisterCommand = Callable[[Callable[[Any], Any]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> RegisterCommand:
    """Registers a command `try` that runs the given function."""

    def register_command(run: Callable[[Any], Any]) -> None:
        module = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--size", type=int), run=run)
        monkeypatch.setitem(sys.modules, "gpufrag.commands.try", module)  # type: ignore[arg-type]
        monkeypatch.setattr(cli, "COMMANDS", (Command("try", "try it", "gpufrag try"),))

    return register_command


def raising(error: BaseException) -> Callable[[Any], Any]:
    def run(options: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize("name", NAMES)
def test_command_module_has_both_functions(name: str) -> None:
    row = next(row for row in cli.COMMANDS if row.name == name)
    module = importlib.import_module(f"gpufrag.commands.{row.module}")
    assert callable(module.add_arguments)
    assert callable(module.run)


@pytest.mark.parametrize("name", [*NAMES, "oom list", "oom show", "oom explain", "mixin build"])
def test_command_help_has_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), "--help"])
    assert stop.value.code == 0
    assert "example: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["measure", "serve", "demo"])
def test_unknown_flag_names_help_of_its_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, *(["FILE"] if name == "measure" else []), "--nonsense"]) == 2
    expected = f"gpufrag: unrecognized arguments: --nonsense (see 'gpufrag {name} --help')\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(("typed", "hint"), [("serv", "did you mean 'serve'?"), ("frobnicate", "see 'gpufrag --help'")])
def test_unknown_command_suggests_closest_name(typed: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([typed]) == 2
    assert capsys.readouterr().err == f"gpufrag: unknown command '{typed}' ({hint})\n"


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out
    assert [name for name in NAMES if name not in listed] == []


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"gpufrag {gpufrag.__version__}\n"


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert capsys.readouterr().out.startswith("usage: gpufrag")


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [(["frobnicate"], "frobnicate"), (["try", "--sise", "5"], "--sise"), (["try", "--size", "big"], "'big'")],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], quoted: str, register: RegisterCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    register(lambda options: 0)
    assert cli.main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("gpufrag: ")
    assert printed.count("\n") == 1
    assert quoted in printed
    assert "--help" in printed


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (UsageError("use it so"), 2, "gpufrag: use it so\n"),
        (GpufragError("failed"), 1, "gpufrag: failed\n"),
        (BadInput("broken"), 1, "gpufrag: broken\n"),
        (Unavailable("away"), 1, "gpufrag: away\n"),
        (FileNotFoundError(2, "No such file or directory", "x.pickle"), 1, "gpufrag: x.pickle: No such file"),
        (OSError("strange"), 1, "gpufrag: system: strange\n"),
        (ZeroDivisionError("division by zero"), 1, "gpufrag: internal error (ZeroDivisionError: division"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_becomes_exit_code_and_one_line(
    error: Exception, code: int, printed: str, register: RegisterCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    register(raising(error))
    assert cli.main(["try"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(printed)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_traceback_variable_shows_internal_error(register: RegisterCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFRAG_TRACEBACK", "1")
    register(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_ctrl_c_exits_130_without_output(register: RegisterCommand, capsys: pytest.CaptureFixture[str]) -> None:
    register(raising(KeyboardInterrupt()))
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3)])
def test_command_result_is_exit_code(result: int | None, code: int, register: RegisterCommand) -> None:
    register(lambda options: result)
    assert cli.main(["try"]) == code


def run_python(source: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, **options)


def test_closed_pipe_exits_without_message() -> None:
    """As in `gpufrag … | head -1`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gpufrag", "measure", str(TESTS / "golden" / "train-cap4.json.gz")]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")


def shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run gpufrag with redirected streams; `$@` keeps each argument whole."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "gpufrag", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


CASE = str(TESTS / "golden" / "train-cap4.json.gz")


@pytest.mark.parametrize(
    ("redirections", "arguments", "reason"),
    [
        (">&-", ["measure", CASE], "standard output: is closed"),
        (">&-", ["measure", CASE, "--json"], "standard output: is closed"),
        (">&-", ["--help"], "standard output: is closed"),
        ("<&-", ["measure", "-"], "standard input is closed"),
        (">/dev/full", ["measure", CASE], "standard output: No space left on device"),
        (">/dev/full", ["--help"], "No space left on device"),
        (">/dev/full", ["measure", "--help"], "No space left on device"),
        (">/dev/full", ["--version"], "No space left on device"),
        ("2>&1 >&-", ["measure", "a\nb\x1b[31m"], "a\\nb\\x1b[31m: no such file"),
    ],
)
@pytest.mark.parametrize("buffered", ["", "1"])
def test_unwritable_output_is_reported_in_one_line(
    redirections: str, arguments: list[str], reason: str, buffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", buffered)
    ended = shell(redirections, *arguments)
    printed = ended.stdout + ended.stderr
    assert (ended.returncode, printed.count("\n")) == (1, 1), printed
    assert printed.startswith("gpufrag: ")
    assert reason in printed
    assert "internal error" not in printed


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full"])
def test_unwritable_stderr_leaves_exit_code(redirections: str) -> None:
    ended = shell(redirections, "measure", "none.pickle")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_closed_stderr_does_not_stop_command() -> None:
    trace = str(TESTS / "fixtures" / "whatif" / "kv-growth.json.gz")
    ended = shell("2>&-", "whatif", trace, "--settings", "expandable_segments:True")
    assert (ended.returncode, "expandable_segments:True" in ended.stdout) == (0, True)


def test_line_break_in_file_name_is_escaped(register: RegisterCommand, capsys: pytest.CaptureFixture[str]) -> None:
    register(raising(OSError(2, "gone", "a\nb")))
    assert cli.main(["try"]) == 1
    assert capsys.readouterr().err == "gpufrag: a\\nb: gone\n"


def test_python_m_runs_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "gpufrag", "--version"]
    assert subprocess.check_output(command, text=True, timeout=60) == f"gpufrag {gpufrag.__version__}\n"


def test_importing_gpufrag_loads_no_submodule() -> None:
    """Training processes import it."""
    loaded = run_python("import sys, gpufrag; print([m for m in sys.modules if m.startswith('gpufrag.')])")
    assert loaded.stdout == "[]\n"


def test_help_imports_no_command() -> None:
    source = "import sys\nfrom gpufrag import cli\ncli.main([])\nprint([m for m in sys.modules if 'commands.' in m])"
    assert run_python(source).stdout.splitlines()[-1] == "[]"


def test_public_names_are_sorted_and_defined() -> None:
    assert gpufrag.__all__ == sorted(gpufrag.__all__)
    assert [name for name in gpufrag.__all__ if not hasattr(gpufrag, name)] == []
