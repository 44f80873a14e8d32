"""The command line: exit codes, one line for what is wrong, and no module loaded that is not asked for."""

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
from gpufrag.errors import BadInput, GpufragError, Unavailable, UsageError
from helpers import TESTS

NAMES = [row.name for row in cli.COMMANDS]
Plug = Callable[[Callable[[Any], Any]], None]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    """Puts a command named `try` into the table, which runs the given function."""

    def put(run: Callable[[Any], Any]) -> None:
        module = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--size", type=int), run=run)
        monkeypatch.setitem(sys.modules, "gpufrag.commands.try", module)  # type: ignore[arg-type]
        monkeypatch.setattr(cli, "COMMANDS", (cli.Command("try", "try it", "gpufrag try"),))

    return put


def raising(error: BaseException) -> Callable[[Any], Any]:
    def run(options: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_a_module_with_both_functions(name: str) -> None:
    row = next(row for row in cli.COMMANDS if row.name == name)
    module = importlib.import_module(f"gpufrag.commands.{row.module}")
    assert callable(module.add_arguments)
    assert callable(module.run)


@pytest.mark.parametrize("name", [*NAMES, "oom list", "oom show", "oom explain", "mixin build"])
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), "--help"])
    assert stop.value.code == 0
    assert "example: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["measure", "serve", "demo"])
def test_an_unknown_flag_is_told_with_the_help_that_lists_the_known_ones(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, *(["FILE"] if name == "measure" else []), "--nonsense"]) == 2
    told = f"gpufrag: unrecognized arguments: --nonsense (see 'gpufrag {name} --help')\n"
    assert capsys.readouterr().err == told


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out
    assert [name for name in NAMES if name not in listed] == []


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"gpufrag {gpufrag.__version__}\n"


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert capsys.readouterr().out.startswith("usage: gpufrag")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["frobnicate"], "frobnicate"), (["try", "--sise", "5"], "--sise"), (["try", "--size", "big"], "'big'")],
)
def test_a_wrong_call_is_one_line_and_2(
    arguments: list[str], told: str, plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(lambda options: 0)
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("gpufrag: ")
    assert said.count("\n") == 1
    assert told in said
    assert "--help" in said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("use it so"), 2, "gpufrag: use it so\n"),
        (GpufragError("failed"), 1, "gpufrag: failed\n"),
        (BadInput("broken"), 1, "gpufrag: broken\n"),
        (Unavailable("away"), 1, "gpufrag: away\n"),
        (FileNotFoundError(2, "No such file or directory", "x.pickle"), 1, "gpufrag: x.pickle: No such file"),
        (OSError("strange"), 1, "gpufrag: system: strange\n"),
        (ZeroDivisionError("division by zero"), 1, "gpufrag: a fault in gpufrag itself (ZeroDivisionError: division"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_become_exit_codes_and_one_line(
    error: Exception, code: int, said: str, plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(raising(error))
    assert cli.main(["try"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_the_traceback_of_a_fault_is_there_on_request(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFRAG_TRACEBACK", "1")
    plug(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_ctrl_c_is_130_and_silent(plug: Plug, capsys: pytest.CaptureFixture[str]) -> None:
    plug(raising(KeyboardInterrupt()))
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_command_may_choose_its_code(result: int | None, code: int, plug: Plug) -> None:
    plug(lambda options: result)
    assert cli.main(["try"]) == code


def run_python(source: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, **options)


def test_a_reader_that_has_left_is_no_error() -> None:
    """As in `gpufrag … | head -1`: the pipe's other end is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gpufrag", "measure", str(TESTS / "golden" / "train-cap4.json.gz")]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")


def shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line with its streams closed or full; `$@` keeps each argument whole."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "gpufrag", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


CASE = str(TESTS / "golden" / "train-cap4.json.gz")


@pytest.mark.parametrize(
    ("redirections", "arguments", "told"),
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
def test_streams_that_are_closed_or_full_are_told_in_one_line(
    redirections: str, arguments: list[str], told: str, buffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", buffered)
    ended = shell(redirections, *arguments)
    said = ended.stdout + ended.stderr
    assert (ended.returncode, said.count("\n")) == (1, 1), said
    assert said.startswith("gpufrag: ")
    assert told in said
    assert "fault in gpufrag" not in said


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full"])
def test_where_nobody_can_be_told_the_code_tells(redirections: str) -> None:
    ended = shell(redirections, "measure", "none.pickle")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_a_closed_stderr_keeps_no_command_from_its_work() -> None:
    trace = str(TESTS / "fixtures" / "whatif" / "kv-growth.json.gz")
    ended = shell("2>&-", "whatif", trace, "--settings", "expandable_segments:True")
    assert (ended.returncode, "expandable_segments:True" in ended.stdout) == (0, True)


def test_a_fault_with_a_line_break_is_one_line(plug: Plug, capsys: pytest.CaptureFixture[str]) -> None:
    plug(raising(OSError(2, "gone", "a\nb")))
    assert cli.main(["try"]) == 1
    assert capsys.readouterr().err == "gpufrag: a\\nb: gone\n"


def test_the_module_and_the_script_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "gpufrag", "--version"]
    assert subprocess.check_output(command, text=True, timeout=60) == f"gpufrag {gpufrag.__version__}\n"


def test_importing_gpufrag_loads_nothing_else_of_it() -> None:
    """It is imported into training processes."""
    loaded = run_python("import sys, gpufrag; print([m for m in sys.modules if m.startswith('gpufrag.')])")
    assert loaded.stdout == "[]\n"


def test_help_loads_no_command() -> None:
    source = "import sys\nfrom gpufrag import cli\ncli.main([])\nprint([m for m in sys.modules if 'gpufrag.c' in m])"
    assert run_python(source).stdout.splitlines()[-1] == "['gpufrag.cli']"


def test_public_names_are_sorted_and_there() -> None:
    assert gpufrag.__all__ == sorted(gpufrag.__all__)
    assert [name for name in gpufrag.__all__ if not hasattr(gpufrag, name)] == []
