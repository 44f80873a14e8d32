"""The two ways in, gdb and sys.remote_exec, if they are missing or fail."""

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


def _program(folder: Path, script: str) -> str:
    path = folder / "gdb"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apt-get install gdb"),
        ("echo Python scripting is not supported in this copy of GDB.", "built without Python"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_unusable_gdb_is_an_error(tmp_path: Path, script: str | None, message: str, monkeypatch) -> None:
    if script is not None:
        _program(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin" if script else "/nowhere")
    monkeypatch.setattr(gdb, "PROBE_TIMEOUT_S", 0.5)
    with pytest.raises(Unavailable, match=message):
        gdb.find()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo \'gpufrag {"error": "full"}\'', "did not take the request and continues unchanged: full"),
        ("echo ptrace: Operation not permitted.", "give the container the capability SYS_PTRACE"),
        (r"printf 'already traced by process 7\nptrace: Operation not permitted.'", "another debugger"),
        ("exit 3", "gdb ended without a message"),
        ('echo \'gpufrag {"stage": "stopped"}\'', "did not take the request"),
    ],
)
def test_failure_of_gdb_is_reported(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(Unavailable, match=message):
        gdb.run(_program(tmp_path, script), os.getpid(), Functions(1, 2, 3, 4, 5), "pass")


def test_hanging_gdb_is_interrupted_first(tmp_path: Path) -> None:
    """It then takes back what it has begun."""
    mark = tmp_path / "let go"
    program = _program(tmp_path, f"trap 'touch \"{mark}\"; exit' INT; while :; do sleep 0.05; done")
    with pytest.raises(Unavailable):
        gdb.run(program, 1, Functions(1, 2, 3, 4, 5), "pass", timeout_s=0.5)
    assert mark.exists()


def test_remote_exec_gets_a_new_file(tmp_path: Path) -> None:
    """Root writes it into a folder of the target's user."""
    asked: list[tuple[int, str]] = []
    module = SimpleNamespace(remote_exec=lambda pid, script: asked.append((pid, script)))
    execute, file = find_remote_exec(TARGET, (3, 14), module), tmp_path / "ask.py"
    (tmp_path / "precious").write_text("precious")
    file.symlink_to(tmp_path / "precious")
    call_remote_exec(execute, TARGET.pid, "pass", file)
    assert asked == [(4711, str(file))]
    assert (file.read_text(), (tmp_path / "precious").read_text()) == ("pass", "precious")


@pytest.mark.parametrize(
    ("target", "ours", "message"),
    [
        (TARGET, (3, 11), "python3.14 -m gpufrag attach 4711"),
        (TARGET, (3, 15), "requires a gpufrag under the same version"),
        (TARGET._replace(environment={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}), (3, 14), "PYTHON_DISABLE_REMOTE_DEBUG set"),
        (TARGET, (3, 14), "built without sys.remote_exec"),
    ],
)
def test_unsupported_remote_exec_is_an_error(target: Target, ours: tuple[int, int], message: str) -> None:
    with pytest.raises(Unavailable, match=message):
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
