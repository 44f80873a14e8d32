"""The causes why a process with the shim has no agent, in a /proc of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufrag.commands.run import injected
from gpufrag.doctor.checks import Ok, Warn
from gpufrag.doctor.host import CHECKS
from gpufrag.doctor.injection import NO_FRAMEWORK, NOT_IN_USE, check, injected_processes
from unix_sockets import bind

SHIM = "/agent/gpufrag/shim"
CUDA = ("libtorch_cpu.so", "libtorch_cuda.so")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents").mkdir()
    return tmp_path / "agents"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def make(
    proc: Path,
    *words: str,
    pid: int = 77,
    program: str = "/usr/bin/python3.11",
    libraries: tuple[str, ...] = (),
    opened: tuple[str, ...] = (),
    **environment: str,
) -> Path:
    """One process of this /proc; returns its folder."""
    home = proc / str(pid)
    (home / "fd").mkdir(parents=True)
    (home / "root").mkdir()
    (home / "root" / "agents").symlink_to(proc.parent / "agents")
    variables = {"PYTHONPATH": SHIM, "GPUFRAG_DIR": "/agents", **environment}
    (home / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in variables.items()))
    (home / "cmdline").write_bytes("\0".join([program, *words, ""]).encode())
    (home / "maps").write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 1 /lib/{name}\n" for name in libraries))
    (home / "exe").symlink_to(program)
    for number, target in enumerate(opened):
        (home / "fd" / str(number)).symlink_to(target)
    return home


@pytest.mark.parametrize(
    ("words", "changes", "cause"),
    [
        ((), {"GPUFRAG_DISABLE": "1"}, "GPUFRAG_DISABLE=1 is set"),
        ((), {"program": "/usr/bin/python3.9"}, "Python 3.9; the agent needs 3.10 or newer"),
        (("-I", "-c", "x"), {}, "started with -I, "),
        (("-W", "error", "-uE", "train.py"), {}, "started with -E, "),
        (("-X", "dev", "train.py", "-I"), {}, NO_FRAMEWORK),
        (("-m", "torch.distributed.run", "-S"), {}, NO_FRAMEWORK),
        ((), {"libraries": ("libtorch_cpu.so",)}, "torch is built without GPU support"),
        ((), {"libraries": CUDA}, NOT_IN_USE),
        ((), {"libraries": (*CUDA, "libcuda.so.1"), "opened": ("/dev/nvidiactl", "/dev/null")}, NOT_IN_USE),
        ((), {"libraries": (*CUDA, "libcuda.so.1"), "opened": ("/dev/nvidia0",)}, "a GPU is in use without an agent"),
    ],
)
def test_cause_is_named(proc: Path, folder: Path, words: tuple[str, ...], changes: dict, cause: str) -> None:
    make(proc, *words, **changes)
    ((pid, found),) = injected_processes(folder, proc)
    assert pid == 77
    assert found is not None
    assert found.startswith(cause)
    assert isinstance(check(folder, proc), Ok if found in (NO_FRAMEWORK, NOT_IN_USE) else Warn)


def test_sitecustomize_in_front_is_named(proc: Path, folder: Path) -> None:
    home = make(proc, PYTHONPATH=f"/otel:/empty:{SHIM}:/behind")
    for name in ("otel", "behind"):
        (home / "root" / name).mkdir()
        (home / "root" / name / "sitecustomize.py").touch()
    result = check(folder, proc)
    assert isinstance(result, Warn)
    assert result.text.startswith("0 of 1 processes with the shim have an agent; pid 77: /otel/sitecustomize.py runs ")


def test_same_folder_by_another_path_is_no_cause(proc: Path, folder: Path) -> None:
    home = make(proc, GPUFRAG_DIR="/run/gpufrag")
    (home / "root" / "run").mkdir()
    (home / "root" / "run" / "gpufrag").symlink_to(folder)
    assert [process.cause for process in injected_processes(folder, proc)] == [NO_FRAMEWORK]


@pytest.mark.parametrize("variable", [{"GPUFRAG_DIR": "/elsewhere"}, {"GPUFRAG_DIR": ""}])
def test_processes_of_other_folders_are_only_counted(proc: Path, folder: Path, variable: dict[str, str]) -> None:
    make(proc, "-I", **variable)
    assert isinstance(check(folder, proc), Ok)
    assert check(folder, proc).text.endswith("(and 1 that use another folder)")
    make(proc, "-I", pid=78)
    assert isinstance(check(folder, proc), Warn)


def test_process_without_the_variable_uses_the_default_folder(proc: Path, folder: Path) -> None:
    home = make(proc, GPUFRAG_DIR="")
    (home / "root" / "tmp").mkdir()
    (home / "root" / "tmp" / f"gpufrag-{os.geteuid()}").symlink_to(folder)
    assert [process.cause for process in injected_processes(folder, proc)] == [NO_FRAMEWORK]


def test_process_with_an_agent_has_no_cause(proc: Path, folder: Path) -> None:
    make(proc)
    make(proc, "-I", pid=78)
    with bind(folder / "host-77-1.sock", 1):
        assert check(folder, proc).text.startswith(
            "1 of 2 processes with the shim have an agent; pid 78: started with -I"
        )


def test_other_processes_are_left_out(proc: Path, folder: Path) -> None:
    make(proc, PYTHONPATH="/somewhere")
    make(proc, pid=78, program="/usr/bin/sh")
    (proc / "version").touch()
    assert check(folder, proc) == Ok("no process here was started with gpufrag run or has the shim on its PYTHONPATH")


def test_real_process_under_the_shim_is_found(folder: Path) -> None:
    environment = {**os.environ, **injected({}), "GPUFRAG_DIR": str(folder)}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = dict(injected_processes(folder))
        process.communicate(b"\n", timeout=60)
    assert found[process.pid] == NO_FRAMEWORK


def test_doctor_has_the_check() -> None:
    assert "injection" in [row.name for row in CHECKS]
