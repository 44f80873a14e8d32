"""The two ways in, gdb and sys.remote_exec, if they are missing or fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpufrag.attach import gdb
from gpufrag.attach.inject import bootstrap, call_remote_exec, find_remote_exec
from gpufrag.attach.target import PAYLOAD, Functions, Target
from gpufrag.errors import Unavailable

TARGET = Target(4711, 1000, 1000, (3, 14), {})


def test_missing_gdb_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="apt-get install gdb"):
        gdb.find()


def _program(folder: Path, script: str) -> str:
    path = folder / "gdb"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_gdb_without_python_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "echo Python scripting is not supported in this copy of GDB.")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(Unavailable, match="built without Python"):
        gdb.find()


def test_hanging_gdb_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(gdb, "PROBE_TIMEOUT_S", 0.1)
    with pytest.raises(Unavailable, match="timed out"):
        gdb.find()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('echo \'gpufrag {"error": "full"}\'', "did not take the request and continues unchanged: full"),
        ("echo ptrace: Operation not permitted.", "give the container the capability SYS_PTRACE"),
        (r"printf 'already traced by process 7\nptrace: Operation not permitted.'", "another debugger"),
        ("exit 3", "gdb ended without a message"),
        ('echo \'gpufrag {"stage": "stopped"}\'', "did not take the request"),
    ],
)
def test_failure_of_gdb_is_reported(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        gdb.run(_program(tmp_path, script), os.getpid(), Functions(1, 2, 3), "pass")


def test_hanging_gdb_is_interrupted_first(tmp_path: Path) -> None:
    """It then takes back what it has begun."""
    mark = tmp_path / "let go"
    program = _program(tmp_path, f"trap 'touch \"{mark}\"; exit' INT; while :; do sleep 0.05; done")
    with pytest.raises(Unavailable):
        gdb.run(program, 1, Functions(1, 2, 3), "pass", timeout_s=0.5)
    assert mark.exists()


def test_remote_exec_gets_a_file(tmp_path: Path) -> None:
    asked: list[tuple[int, str]] = []
    module = SimpleNamespace(remote_exec=lambda pid, script: asked.append((pid, script)))
    execute = find_remote_exec(TARGET, (3, 14), module)
    call_remote_exec(execute, TARGET.pid, "pass", tmp_path / "ask.py")
    assert asked == [(4711, str(tmp_path / "ask.py"))]
    assert (tmp_path / "ask.py").read_text() == "pass"


def test_code_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Root writes it into a folder of the target's user."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "ask.py").symlink_to(tmp_path / "precious")
    call_remote_exec(lambda pid, script: None, 4711, "pass", tmp_path / "ask.py")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    ("target", "ours", "said"),
    [
        (TARGET, (3, 11), "python3.14 -m gpufrag attach 4711"),
        (TARGET, (3, 15), "requires a gpufrag under the same version"),
        (TARGET._replace(environment={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}), (3, 14), "PYTHON_DISABLE_REMOTE_DEBUG set"),
        (TARGET, (3, 14), "built without sys.remote_exec"),
    ],
)
def test_unsupported_remote_exec_is_an_error(target: Target, ours: tuple[int, int], said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        find_remote_exec(target, ours, SimpleNamespace())


def test_refused_remote_exec_is_an_error(tmp_path: Path) -> None:
    def refuse(pid: int, script: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(Unavailable, match="continues unchanged"):
        call_remote_exec(refuse, 4711, "pass", tmp_path / "ask.py")


def _run_bootstrap(payload: Path, report: Path) -> subprocess.CompletedProcess[str]:
    program = f"exec({bootstrap(payload, report)!r}, vars())\nprint(sorted(vars()))"
    environment = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True, timeout=60)


def test_bootstrap_runs_the_payload_and_binds_nothing(tmp_path: Path) -> None:
    done = _run_bootstrap(PAYLOAD, tmp_path / "report.json")
    alone = subprocess.run([sys.executable, "-c", "print(sorted(vars()))"], text=True, capture_output=True)
    assert (done.stdout, done.stderr) == (alone.stdout, "")
    assert json.loads((tmp_path / "report.json").read_text()) == {"state": "waiting"}


@pytest.mark.parametrize("fault", ["raise SystemExit(1)", "1/0", "def broken(:", None])
def test_failing_payload_raises_nothing(tmp_path: Path, fault: str | None) -> None:
    payload = tmp_path / 'payload\'s "file".py'
    if fault is not None:
        payload.write_text(fault)
    done = _run_bootstrap(payload, tmp_path / "report")
    assert (done.returncode, done.stderr) == (0, "")
