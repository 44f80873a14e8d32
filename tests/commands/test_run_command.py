"""`gpufrag run -- CMD`: CMD itself, with the shim first on PYTHONPATH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpufrag
from gpufrag.commands.run import SHIM, injected, name_of

EXPORTER = Path(gpufrag.__file__).parents[1]
RUN = [sys.executable, "-m", "gpufrag", "run"]
PRINT = """
import json, os, sys
print(json.dumps({"pid": os.getpid(), "path": sys.path, "environment": dict(os.environ), "arguments": sys.argv[1:]}))
"""


def _start(*words: str, **environment: str) -> subprocess.Popen[str]:
    surroundings = {**os.environ, "PYTHONPATH": str(EXPORTER), **environment}
    return subprocess.Popen([*RUN, *words], env=surroundings, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _run(*flags: str, **environment: str) -> dict[str, Any]:
    """What a Python program under `gpufrag run` finds."""
    with _start(*flags, "--", sys.executable, "-c", PRINT, "--flag", "-x", **environment) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert found["pid"] == process.pid, "the pid must stay: it may be a container's first"
    assert found["arguments"] == ["--flag", "-x"]
    return found


def test_pythonpath_entries_are_kept_behind_the_shim() -> None:
    found = _run(PYTHONPATH=f"{EXPORTER}{os.pathsep}/some/where")
    assert found["environment"]["PYTHONPATH"] == os.pathsep.join([str(SHIM), str(EXPORTER), "/some/where"])
    assert "/some/where" in found["path"]
    assert str(SHIM) not in found["path"]


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": str(SHIM)}])
def test_empty_pythonpath_adds_no_working_directory(before: dict[str, str]) -> None:
    assert injected(before)["PYTHONPATH"] == str(SHIM)


def test_run_within_a_run_changes_nothing() -> None:
    once = injected({"PYTHONPATH": "/a::/b"})
    assert once["PYTHONPATH"] == f"{SHIM}:/a::/b"
    assert injected(once) == once


def test_flags_reach_every_process_through_the_environment(tmp_path: Path) -> None:
    flags = ("--interval", "2.5", "--budget", "0.01", "--anchor", "20%", "--leak-threshold", "5MB")
    found = _run(*flags, "--folder", str(tmp_path))["environment"]
    expected = {
        "INTERVAL": "2.5", "BUDGET": "0.01", "ANCHOR": "0.2", "LEAK_THRESHOLD": "5000000", "DIR": str(tmp_path)
    }  # fmt: skip
    assert {name: found[f"GPUFRAG_{name}"] for name in expected} == expected


def test_anchor_reaches_every_process_as_a_size() -> None:
    assert _run("--anchor", "20GiB")["environment"]["GPUFRAG_ANCHOR"] == str(20 << 30)


def test_unwritable_folder_is_a_warning() -> None:
    with _start("--folder", "/dev/null", "--", sys.executable, "-c", "print('ran')") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ran\n")
    assert err.startswith("gpufrag: cannot create /dev/null: ")
    assert err.count("\n") == 1


def test_environment_without_flags_is_unchanged() -> None:
    found = _run(GPUFRAG_INTERVAL="7")["environment"]
    assert found["GPUFRAG_INTERVAL"] == "7"
    assert not found.keys() & {"GPUFRAG_BUDGET", "GPUFRAG_ANCHOR"}


@pytest.mark.parametrize(
    ("words", "code"), [(["--", sys.executable, "-c", "raise SystemExit(42)"], 42), (["true"], 0)], ids=["--", "no --"]
)
def test_exit_code_is_the_commands(words: list[str], code: int) -> None:
    with _start(*words) as process:
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == code


def test_command_does_not_inherit_the_signals_that_python_ignores() -> None:
    """A command that ignores SIGPIPE does not end when the reader of its pipe does."""
    with _start("grep", "SigIgn", "/proc/self/status") as process:
        out, _ = process.communicate(timeout=60)
    ignored = int(out.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_command(number: signal.Signals) -> None:
    program = f"import signal; signal.signal({number:d}, signal.SIG_DFL); print('ready', flush=True); signal.pause()"
    with _start("--", sys.executable, "-c", program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    assert process.returncode == -number


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--"], 2, "no command given; write it after --"),
        ([], 2, "no command given"),
        (["--bogus", "--", "true"], 2, "--bogus"),
        (["--interval", "0", "--", "true"], 2, "interval must be 0.001 to"),
        (["--interval", "soon", "--", "true"], 2, "soon"),
        (
            ["--budget", "2", "--", "true"],
            2,
            "budget must be a share of wall time from 0.000000001 to 1, such as 0.001 (got 2)",
        ),
        (["--anchor", "120%", "--", "true"], 2, "anchor must be above 0"),
        (["--anchor", "much", "--", "true"], 2, "--anchor must be a share of the device or a size"),
        (["--leak-threshold", "much", "--", "true"], 2, "--leak-threshold: 'much' is not a size"),
        (["--leak-threshold", "0", "--", "true"], 2, "leak threshold must be above 0"),
        (["--name", "train", "--", "true"], 2, "add --restartable"),
        (["--restartable", "--name", "", "--", "true"], 2, "--name must have"),
        (["--restartable", "--name", "a\nb", "--", "true"], 2, "--name must have"),
        (["--restartable", "--name", "n" * 201, "--", "true"], 2, "--name must have"),
        (["--restartable", "--grace", "0s", "--", "true"], 2, "--grace must be above 0, such as 60s (got 0s)"),
        (["--restartable", "--grace", "soon", "--", "true"], 2, "--grace: 'soon' is not a duration"),
        (["--grace", "", "--", "true"], 2, "add --restartable"),
        (["--folder", "", "--", "true"], 2, "DIR is empty"),
        (["--folder", "/dev/null", "--restartable", "--", "true"], 1, "cannot create /dev/null"),
        (["--", "no-such-command"], 1, "cannot run 'no-such-command': no such command on PATH"),
        (["--", "./no/such/file"], 1, "cannot run './no/such/file': no such file"),
        (["--", "/"], 1, "cannot run '/': Permission denied"),
    ],
)
def test_invalid_call_is_one_line(cli, words: list[str], code: int, text: str) -> None:
    found, error = cli.refusal("run", *words)
    assert (found, text in error) == (code, True), error


def test_failed_start_keeps_the_signals_of_this_process(cli) -> None:
    """Otherwise the next write to a closed pipe or connection would end a program that embeds gpufrag."""
    before = signal.getsignal(signal.SIGPIPE)
    cli.refusal("run", "--", "./no/such/file")
    assert signal.getsignal(signal.SIGPIPE) == before != signal.SIG_DFL


def test_script_without_interpreter_is_refused(cli, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("echo training\n")
    script.chmod(0o755)
    code, error = cli.refusal("run", "--", script)
    assert (code, "start the script with #!/bin/sh" in error) == (1, True)


def test_shim_of_another_copy_is_replaced() -> None:
    assert injected({"PYTHONPATH": "/a:/agent/gpufrag/shim:/b"})["PYTHONPATH"] == f"{SHIM}:/a:/b"


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (["torchrun", "--nproc-per-node", "8", "src/train.py", "--data", "x.py"], "train"),
        (["/usr/bin/serve", "-v"], "serve"),
    ],
)
def test_job_is_named_after_its_script(job: list[str], name: str) -> None:
    assert name_of(job) == name
