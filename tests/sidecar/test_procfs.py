"""Processes by pid, from a fake /proc and from the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpufrag.sidecar import procfs
from gpufrag.sidecar.procfs import HostProcess, VisibleProcesses

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """The machine booted at 1000; its first pid namespace is the reader's."""
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")
    return tmp_path


def add(proc: Path, pid: int, status: str, ticks: int = 0, name: str = "python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "status").write_text(f"Name:\t{name}\n{status}")
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {' '.join(['0'] * 18)} {ticks} 0 0\n")


@pytest.mark.parametrize(
    ("status", "name", "pid"),
    [("NSpid:\t4711\t12\t1\n", "python", 1), ("Pid:\t4711\n", "python", 4711), ("", "a) S 1 (b", 4711)],
    ids=["in a container", "kernel without NSpid", "name with blanks and brackets"],
)
def test_process_has_its_innermost_pid_and_start(proc: Path, status: str, name: str, pid: int) -> None:
    add(proc, 4711, status, ticks=5 * TICKS, name=name)
    assert procfs.visible_processes([4711], proc) == VisibleProcesses({4711: HostProcess(pid, 1005.0)}, complete=True)


def test_missing_pid_is_left_out(proc: Path) -> None:
    add(proc, 5, "")
    assert procfs.visible_processes([5, 6], proc).by_pid.keys() == {5}


def test_view_from_a_container_is_incomplete(proc: Path) -> None:
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/pid").symlink_to("pid:[4026532999]")
    assert not procfs.visible_processes([], proc).complete


def test_missing_proc_shows_nothing(tmp_path: Path) -> None:
    assert procfs.visible_processes([1], tmp_path) == VisibleProcesses({}, complete=False)


def add_python(proc: Path, pid: int, program: str = "/usr/bin/python3.11", **environment: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_text(f"{program}\0train.py\0")
    (proc / str(pid) / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))


def test_python_processes_with_the_agent_are_found(proc: Path) -> None:
    add_python(proc, 1, GPUFRAG_AGENT_PATH="/lib", GPUFRAG_DIR="/run/x")
    add_python(proc, 2, PYTHONPATH="/a:/lib/gpufrag/shim")
    add_python(proc, 3, PYTHONPATH="/a")
    add_python(proc, 4, program="/bin/sh", GPUFRAG_AGENT_PATH="/lib")
    (proc / "5").mkdir()  # another user's: nothing can be read
    assert procfs.agent_processes(proc) == [procfs.AgentProcess(1, "/run/x"), procfs.AgentProcess(2, None)]


def test_missing_proc_has_no_agent_processes(tmp_path: Path) -> None:
    assert procfs.agent_processes(tmp_path / "none") == []


@pytest.mark.real
@pytest.mark.skipif(not procfs.PROC.joinpath("self/stat").exists(), reason="no /proc on this system")
def test_real_child_is_found_with_its_start() -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = procfs.visible_processes([child.pid]).by_pid[child.pid]
        child.communicate(b"\n")
    assert found.pid == child.pid
    assert before - 2 <= found.start <= time.time() + 2  # the boot time counts whole seconds


@pytest.mark.real
def test_real_child_namespace_is_read() -> None:
    unshare = next((["unshare", flags] for flags in ("-pf", "-Urpf") if _works(["unshare", flags, "true"])), None)
    if unshare is None:
        pytest.skip("no leave to make a pid namespace (unshare -pf, unshare -Urpf): run as root to test it")
    command = [*unshare, sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        (inner,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        found = procfs.visible_processes([int(inner)]).by_pid[int(inner)]
        parent.communicate(b"\n")
    assert found.pid == 1


def _works(command: list[str]) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0
