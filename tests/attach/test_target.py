"""Every obstacle to an attach is found and named before the process is touched."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufrag.attach.target import Caller, examine, functions, trace_obstacle
from gpufrag.cli import main
from gpufrag.commands.run import PACKAGE
from gpufrag.errors import GpufragError, Unavailable, UsageError

ROOT = os.geteuid() == 0
OWNER = 4_711_000  # has no name
LOOP = "print('ready', flush=True)\nsys.stdin.read()"


@pytest.fixture
def anybody() -> Caller:
    """May trace whatever belongs to this user."""
    return Caller(os.getuid(), True)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def _proc(folder: Path, patch: Any, scope: str | None = None, tracer: int = 0, proc_owner: int = OWNER) -> Path:
    """A /proc with process 77 of user OWNER. The kernel gives it to root once the process has changed its user."""
    (folder / "77").mkdir()
    uids = "\t".join([str(OWNER)] * 4)
    (folder / "77" / "status").write_text(f"State:\tS (sleeping)\nTracerPid:\t{tracer}\nUid:\t{uids}\n")
    patch.setattr(Path, "stat", lambda path: SimpleNamespace(st_uid=proc_owner))
    if scope is not None:
        (folder / "sys/kernel/yama").mkdir(parents=True)
        (folder / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    return folder


def _error(pid: int, anybody: Caller) -> str:
    with pytest.raises(GpufragError) as raised:
        examine(pid, anybody)
    return str(raised.value)


@pytest.mark.parametrize("pid", [2**22 + 7, 0, -1])
def test_missing_process_is_named(pid: int, anybody: Caller) -> None:
    assert _error(pid, anybody).startswith(f"no process {pid}; ")


def test_process_that_ends_meanwhile_is_named() -> None:
    with pytest.raises(Unavailable, match="no process 99999999"):
        functions(99999999)


def test_own_process_is_refused(anybody: Caller) -> None:
    with pytest.raises(UsageError, match="is this command"):
        examine(os.getpid(), anybody)


def test_other_program_is_refused(sleeper: subprocess.Popen[bytes], anybody: Caller) -> None:
    assert f"process {sleeper.pid} is /" in _error(sleeper.pid, anybody)
    assert "not a Python 3" in _error(sleeper.pid, anybody)


def test_stopped_process_is_refused(sleeper: subprocess.Popen[bytes], anybody: Caller) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert f"kill -CONT {sleeper.pid}" in _error(sleeper.pid, anybody)


def test_zombie_is_refused(anybody: Caller) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert "has ended" in _error(process.pid, anybody)
    process.wait()


OBSTACLES = {
    "none": ({}, Caller(OWNER, False), None),
    "scope 0": ({"scope": "0"}, Caller(OWNER, False), None),
    "scope 1": ({"scope": "1"}, Caller(OWNER, False), "ptrace_scope is 1, which requires CAP_SYS_PTRACE"),
    "scope 2": ({"scope": "2"}, Caller(OWNER, False), "ptrace_scope is 2"),
    "scope 3": ({"scope": "3"}, Caller(OWNER, True), "ptrace_scope is 3, which forbids tracing"),
    "scope 1, capable": ({"scope": "1"}, Caller(OWNER, True), None),
    "scope 2, capable": ({"scope": "2"}, Caller(OWNER, True), None),
    "another user": ({}, Caller(54321, False), f"it belongs to user {OWNER}, this command runs as 54321; run this com"),
    "changed user": ({"proc_owner": 0}, Caller(OWNER, False), "only CAP_SYS_PTRACE may trace it"),
    "traced": ({"tracer": 99}, Caller(OWNER, True), "already traced by process 99"),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_obstacle_is_named(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process, caller, message = OBSTACLES[case]
    found = trace_obstacle(77, caller, _proc(tmp_path, monkeypatch, **process))
    assert (found is None) if message is None else (message in found)


def test_capability_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    for bits, capable in (("0000000000080000", True), ("000001fffff7ffff", False)):
        (tmp_path / "self" / "status").write_text(f"CapEff:\t{bits}\n")
        assert Caller.current(tmp_path) == Caller(os.getuid(), capable)


def test_process_without_memory_has_ended(tmp_path: Path) -> None:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "maps").touch()
    with pytest.raises(Unavailable, match="no process 4711"):
        functions(4711, tmp_path)


@pytest.mark.real
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_static_interpreter_is_refused(tmp_path: Path, anybody: Caller) -> None:
    source, program = tmp_path / "wait.c", tmp_path / "python3.11"
    source.write_text('#include <unistd.h>\nint main(void) { char c; write(1, "x", 1); return read(0, &c, 1); }\n')
    subprocess.run(["gcc", "-static", "-s", "-o", str(program), str(source)], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        assert examine(process.pid, anybody).python == (3, 11)
        with pytest.raises(Unavailable, match="stripped or linked so that Py_AddPendingCall"):
            functions(process.pid)
        process.communicate()


@pytest.mark.parametrize("version", ["2.7", "3.9"])
def test_older_python_is_refused(version: str, tmp_path: Path, anybody: Caller) -> None:
    """The name of its program has the version; this one is cat."""
    program = shutil.copy(shutil.which("cat") or "", tmp_path / f"python{version}")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"x"), process.stdin.flush(), process.stdout.read(1)  # type: ignore[union-attr]
        assert f"runs Python {version}; the agent needs 3.10" in _error(process.pid, anybody)
        process.communicate()


CONTAINERS = {
    "of its own files": ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {PACKAGE} && exec "$@"', "sh"],
    "of its own pids": ["unshare", "-p", "--fork", "--kill-child"],
}


@pytest.mark.real
@pytest.mark.skipif(not ROOT, reason="only root makes namespaces")
@pytest.mark.parametrize("kind", CONTAINERS)
def test_process_of_another_container_is_refused(kind: str, begin, anybody: Caller) -> None:
    victim = begin(f"import gpufrag\n{LOOP}" if "pids" in kind else LOOP, *CONTAINERS[kind])
    children = Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()
    error = _error(int(children[0]) if children else victim.pid, anybody)
    assert "in another container" in error
    assert "run this command inside that container" in error
    victim.end()


def test_disabled_process_is_refused(begin, capsys: pytest.CaptureFixture[str]) -> None:
    victim = begin(LOOP, GPUFRAG_DISABLE="1")
    if trace_obstacle(victim.pid, Caller.current()) is None:
        assert main(["attach", str(victim.pid), "--yes"]) == 1
        assert "GPUFRAG_DISABLE=1 is set in it" in capsys.readouterr().err
    victim.end()


def test_python_process_is_described(begin, anybody: Caller) -> None:
    victim = begin(LOOP, MARK="here")
    target = examine(victim.pid, anybody)
    assert target[:4] == (victim.pid, os.geteuid(), os.getegid(), sys.version_info[:2])
    assert target.environment["MARK"] == "here"
    victim.end()
