"""Why a process that should have an agent has none: the causes that can be seen from outside the process."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..wire.control_client import listens
from ..wire.folder import SHARED, VARIABLE, FileName
from ..wire.processes import PROC, environment_of
from .checks import Ok, Result, Warn, some

SHIM = ("gpufrag", "shim")
OLDEST_PYTHON = (3, 10)
_PYTHON = re.compile(r"python(?:(\d)(?:\.(\d+))?)?")
_OPTION_WITH_VALUE = "WX"
_ISOLATING = {"I": "-I", "E": "-E", "S": "-S"}


class Injected(NamedTuple):
    """A Python process with our shim on its PYTHONPATH. `cause` is why it has no agent; None if it has one."""

    pid: int
    cause: str | None


def check(folder: Path, proc: Path = PROC) -> Result:
    """Judge the processes whose samples go to `folder`; only count those of other jobs."""
    found = list(injected_processes(folder, proc))
    if not found:
        return Ok("no process here was started with gpufrag run or has the shim on its PYTHONPATH")
    here = [process for process in found if process.cause != OTHER_FOLDER]
    causes: dict[str, list[str]] = defaultdict(list)
    for process in here:
        if process.cause is not None:
            causes[process.cause].append(f"pid {process.pid}")
    with_agent = sum(process.cause is None for process in here)
    summary = f"{with_agent} of {len(here)} processes with the shim have an agent"
    if others := len(found) - len(here):
        summary += f" (and {others} that use another folder)"
    waiting = {cause: pids for cause, pids in causes.items() if cause in WAITING}
    wrong = {cause: pids for cause, pids in causes.items() if cause not in WAITING}
    lines = [f"{some(pids)}: {cause}" for cause, pids in (wrong or waiting).items()]
    return (Warn if wrong else Ok)("; ".join([summary, *lines]))


NO_FRAMEWORK = "no framework loaded that gpufrag knows"
NOT_IN_USE = "no GPU used yet"
OTHER_FOLDER = "writes to another folder"
WAITING = frozenset({NO_FRAMEWORK, NOT_IN_USE})
"""Nothing is wrong: launchers and data loader workers stay like this."""


def injected_processes(folder: Path, proc: Path = PROC) -> Iterator[Injected]:
    """Processes whose environment this user may not read are left out."""
    for entry in sorted(os.listdir(proc)):
        if not entry.isdigit():
            continue
        pid = int(entry)
        environment = environment_of(pid, proc)
        if not any(_is_shim(path) for path in _python_path(environment)):
            continue
        program = _link(proc / entry / "exe")
        if _PYTHON.match(os.path.basename(program)):
            yield Injected(pid, None if _has_agent(pid, folder) else _cause(pid, program, environment, folder, proc))


def _cause(pid: int, program: str, environment: Mapping[str, str], folder: Path, proc: Path) -> str:
    if not any(_same_folder(pid, used, folder, proc) for used in _folders(pid, environment, proc)):
        return OTHER_FOLDER
    if environment.get("GPUFRAG_DISABLE") == "1":
        return "GPUFRAG_DISABLE=1 is set"
    version = _PYTHON.match(os.path.basename(program))
    if version and version[2] and (int(version[1]), int(version[2])) < OLDEST_PYTHON:
        return f"Python {version[1]}.{version[2]}; the agent needs 3.10 or newer"
    if flag := _isolating_flag(pid, proc):
        return f"started with {flag}, which ignores PYTHONPATH; use gpufrag install-agent --python, or gpufrag.start()"
    if first := _first_sitecustomize(pid, environment, proc):
        return (
            f"{first} runs instead of the shim: put the shim first on PYTHONPATH, or use gpufrag install-agent --python"
        )
    libraries = _libraries(pid, proc)
    if "libtorch_cpu.so" in libraries and not libraries & {"libtorch_cuda.so", "libtorch_hip.so"}:
        return "torch is built without GPU support; install the CUDA build"
    if not libraries & {"libtorch_cuda.so", "libtorch_hip.so", "xla_cuda_plugin.so", "libtensorflow_framework.so.2"}:
        return NO_FRAMEWORK
    if not libraries & {"libcuda.so.1", "libamdhip64.so"} or not _uses_gpu(pid, proc):
        return NOT_IN_USE
    return "a GPU is in use without an agent; see the stderr of the process for a line that starts with gpufrag"


def _python_path(environment: Mapping[str, str]) -> list[str]:
    return [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _is_shim(path: str) -> bool:
    return Path(path).parts[-2:] == SHIM


def _has_agent(pid: int, folder: Path) -> bool:
    for path in folder.glob(f"*-{pid}-*.sock"):
        name = FileName.parse(path.name)
        with suppress(PermissionError):
            if name is not None and name.pid == pid and listens(path):
                return True
    return False


def _isolating_flag(pid: int, proc: Path) -> str | None:
    """Return -I, -E or -S if the interpreter's own options have it."""
    with suppress(OSError):
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[1:]
        skip = False
        for word in words:
            if skip:
                skip = False
                continue
            if not word.startswith("-") or word.startswith(("-c", "-m", "--")) or word == "-":
                return None
            skip = word[-1] in _OPTION_WITH_VALUE and len(word) == 2
            if word[1] not in _OPTION_WITH_VALUE:
                for letter in word[1:]:
                    if letter in _ISOLATING:
                        return _ISOLATING[letter]
    return None


def _first_sitecustomize(pid: int, environment: Mapping[str, str], proc: Path) -> str | None:
    """Return the sitecustomize in front of the shim. If that calls the next one, the process has an agent."""
    for entry in _python_path(environment):
        if _is_shim(entry):
            return None
        with suppress(OSError):
            if (proc / str(pid) / "root" / entry.lstrip("/") / "sitecustomize.py").is_file():
                return f"{entry}/sitecustomize.py"
    return None


def _folders(pid: int, environment: Mapping[str, str], proc: Path) -> Iterator[str]:
    """Where the process may write its samples; see wire.folder.to_write."""
    if named := environment.get(VARIABLE):
        yield named
        return
    yield str(SHARED)
    with suppress(OSError):
        yield f"{environment.get('TMPDIR', '/tmp')}/gpufrag-{(proc / str(pid)).stat().st_uid}"


def _same_folder(pid: int, named: str, folder: Path, proc: Path) -> bool:
    """True if it cannot be determined."""
    try:
        theirs = proc / str(pid) / ("root" if named.startswith("/") else "cwd") / named.lstrip("/")
        return os.path.samestat(theirs.stat(), folder.stat())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _libraries(pid: int, proc: Path) -> set[str]:
    with suppress(OSError):
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
        return {os.path.basename(words[5]) for line in lines if len(words := line.split(maxsplit=5)) == 6}
    return set()


def _uses_gpu(pid: int, proc: Path) -> bool:
    with suppress(OSError):
        for entry in os.listdir(proc / str(pid) / "fd"):
            target = _link(proc / str(pid) / "fd" / entry)
            if target.startswith(("/dev/nvidia", "/dev/kfd")) and target != "/dev/nvidiactl":
                return True
    return False


def _link(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""
