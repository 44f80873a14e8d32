"""The two ways in, gdb and sys.remote_exec, where they are not to be had or do not go well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpufrag.attach import gdb, remote_exec
from gpufrag.attach.bootstrap import bootstrap
from gpufrag.attach.target import PAYLOAD, Functions, Target
from gpufrag.errors import Unavailable

TARGET = Target(4711, 1000, 1000, (3, 14), {})


def test_without_gdb_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="apt-get install gdb"):
        gdb.find()


def _program(folder: Path, script: str) -> str:
    path = folder / "gdb"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_gdb_without_python_is_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "echo Python scripting is not supported in this copy of GDB.")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(Unavailable, match="built without Python"):
        gdb.find()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('echo \'gpufrag {"error": "full"}\'', "not asked, and goes on as before: full"),
        ("echo ptrace: Operation not permitted.", "give the container the capability SYS_PTRACE"),
        (r"printf 'already traced by process 7\nptrace: Operation not permitted.'", "another debugger"),
        ("exit 3", "gdb ended without a word"),
        ('echo \'gpufrag {"stage": "stopped"}\'', "not asked"),
    ],
)
def test_what_gdb_could_not_do_is_told(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        gdb.ask(_program(tmp_path, script), os.getpid(), Functions(1, 2, 3), "pass")


def test_a_gdb_that_hangs_is_asked_to_let_go_before_it_is_ended(tmp_path: Path) -> None:
    """It then takes back what it has begun."""
    mark = tmp_path / "let go"
    program = _program(tmp_path, f"trap 'touch \"{mark}\"; exit' INT; while :; do sleep 0.05; done")
    with pytest.raises(Unavailable):
        gdb.ask(program, 1, Functions(1, 2, 3), "pass", limit=0.5)
    assert mark.exists()


def test_python_is_asked_by_its_own_function_with_a_file(tmp_path: Path) -> None:
    asked: list[tuple[int, str]] = []
    module = SimpleNamespace(remote_exec=lambda pid, script: asked.append((pid, script)))
    execute = remote_exec.find(TARGET, (3, 14), module)
    remote_exec.ask(execute, TARGET.pid, tmp_path / "ask.py")
    assert asked == [(4711, str(tmp_path / "ask.py"))]


@pytest.mark.parametrize(
    ("target", "ours", "said"),
    [
        (TARGET, (3, 11), "python3.14 -m gpufrag attach 4711"),
        (TARGET, (3, 15), "only a gpufrag under the same version"),
        (TARGET._replace(environment={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}), (3, 14), "forbids it"),
        (TARGET, (3, 14), "built without sys.remote_exec"),
    ],
)
def test_where_python_has_no_way_in_the_reason_is_told(target: Target, ours: tuple[int, int], said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        remote_exec.find(target, ours, SimpleNamespace())


def test_what_python_refuses_is_one_line(tmp_path: Path) -> None:
    def refuse(pid: int, script: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(Unavailable, match="goes on as before"):
        remote_exec.ask(refuse, 4711, tmp_path)


def _run_bootstrap(payload: Path, report: Path) -> subprocess.CompletedProcess[str]:
    program = f"exec({bootstrap(payload, report)!r}, vars())\nprint(sorted(vars()))"
    environment = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True, timeout=60)


def test_the_line_that_is_handed_over_runs_the_payload_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = _run_bootstrap(PAYLOAD, tmp_path / "report.json")
    alone = subprocess.run([sys.executable, "-c", "print(sorted(vars()))"], text=True, capture_output=True)
    assert (done.stdout, done.stderr) == (alone.stdout, "")
    assert json.loads((tmp_path / "report.json").read_text()) == {"state": "waiting"}


@pytest.mark.parametrize("fault", ["raise SystemExit(1)", "1/0", "def broken(:", None])
def test_nothing_gets_out_of_it(tmp_path: Path, fault: str | None) -> None:
    payload = tmp_path / 'payload\'s "file".py'
    if fault is not None:
        payload.write_text(fault)
    done = _run_bootstrap(payload, tmp_path / "report")
    assert (done.returncode, done.stderr) == (0, "")
