"""The process to attach to, and whether that is possible; nothing here touches it."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput, Unavailable, UsageError
from ..wire.processes import PROC, environment_of
from .elf import Exports, exports

OLDEST, REMOTE_EXEC = (3, 10), (3, 14)
"""The oldest Python that the agent supports, and the first one with sys.remote_exec."""
MACHINE = "x86_64"
"""The only machine type that gdb_script supports."""
PAYLOAD = Path(__file__).resolve().parent / "payload.py"
INTERPRETER = ("Py_AddPendingCall", "PyDict_New", "PyRun_StringFlags", "Py_DecRef")
_VERSIONS = (r"/libpython(\d)\.(\d+)", r"/python(\d)\.(\d+)$", r"\.cpython-(\d)(\d+)-", r"/python(\d)\.(\d+)/")
"""Paths that name the version, the most reliable first."""
_PYTHON, _C_LIBRARY = r"(lib)?python", r"libc[.-]|ld-musl"
_SYS_PTRACE = 19  # the capability's number


class Caller(NamedTuple):
    """The user who attaches, and whether he has the capability CAP_SYS_PTRACE."""

    uid: int
    capable: bool

    @classmethod
    def current(cls, proc: Path = PROC) -> Caller:
        capabilities = int(_status_of("self", proc).get("CapEff", "0"), 16)
        return cls(os.getuid(), bool(capabilities >> _SYS_PTRACE & 1))


class Target(NamedTuple):
    """`uid` and `gid` are the effective ones, `python` is its version, `environment` the one it started with."""

    pid: int
    uid: int
    gid: int
    python: tuple[int, int]
    environment: Mapping[str, str]


class Functions(NamedTuple):
    """Addresses in the process."""

    add_pending_call: int
    new_dict: int
    run_string: int
    release: int
    mmap: int


def examine(pid: int, caller: Caller, proc: Path = PROC) -> Target:
    """Raises UsageError for a process that can never be attached to, Unavailable for one that cannot be now."""
    if pid == os.getpid():
        raise UsageError(f"process {pid} is this command; give the pid of the training process")
    with _kernel_errors(pid):
        _check(pid, caller, proc)
        status = _status_of(str(pid), proc)
        (proc / str(pid) / "environ").read_bytes()  # raises if it may not be read
        uid, gid = (int(status[key].split()[1]) for key in ("Uid", "Gid"))
        return Target(pid, uid, gid, _python_version(pid, proc), environment_of(pid, proc))


def _check(pid: int, caller: Caller, proc: Path) -> None:
    state = _status_of(str(pid), proc).get("State", "?")
    if state[0] in "ZX":
        raise Unavailable(f"process {pid} has ended; its parent has not collected it yet")
    if state[0] in "Tt":
        raise Unavailable(f"process {pid} is stopped; continue it first: kill -CONT {pid}")
    if (obstacle := trace_obstacle(pid, caller, proc)) is not None:
        raise Unavailable(f"cannot attach to process {pid}: {obstacle}")
    if (proc / str(pid) / "ns/pid").readlink() != (proc / "self/ns/pid").readlink() or not is_visible(
        pid, PAYLOAD, proc
    ):
        raise Unavailable(
            f"process {pid} is in another container and cannot read {PAYLOAD}; run this command inside that "
            "container, with gpufrag installed there"
        )


def trace_obstacle(pid: int, caller: Caller, proc: Path = PROC) -> str | None:
    """Return what forbids tracing the process, if anything. Raises OSError if it has ended."""
    remedy = "run this command as that user, as root, or with the capability CAP_SYS_PTRACE"
    status = _status_of(str(pid), proc)
    if (tracer := status.get("TracerPid", "0")) != "0":
        return f"it is already traced by process {tracer} (a debugger, strace); end that first"
    if (scope := _ptrace_scope(proc)) == 3:
        return "kernel.yama.ptrace_scope is 3, which forbids tracing until the machine restarts"
    if caller.capable:
        return None
    uids = [int(number) for number in status["Uid"].split()[:3]]
    if any(uid != caller.uid for uid in uids):
        return f"it belongs to user {_user_name(uids[1])}, this command runs as {_user_name(caller.uid)}; {remedy}"
    if (proc / str(pid)).stat().st_uid != uids[1]:
        return f"it has changed its user or its capabilities, so only CAP_SYS_PTRACE may trace it; {remedy}"
    if scope > 0:
        return f"kernel.yama.ptrace_scope is {scope}, which requires CAP_SYS_PTRACE or root"
    return None


def functions(pid: int, proc: Path = PROC) -> Functions:
    """Return the addresses of the functions that gdb calls. Raises Unavailable if they cannot be found."""
    with _kernel_errors(pid):
        try:
            return _functions(pid, proc)
        except Unavailable:
            if not any(_maps(pid, proc)):  # it has ended meanwhile
                raise ProcessLookupError from None
            raise


def _functions(pid: int, proc: Path) -> Functions:
    interpreter = _find_exporting(pid, _PYTHON, INTERPRETER, proc)
    if interpreter is None:
        raise Unavailable(
            f"process {pid}: its interpreter is stripped or linked so that {', '.join(INTERPRETER)} "
            "cannot be found; start the job with gpufrag run instead"
        )
    machine = interpreter[0].machine
    if machine != MACHINE:
        raise Unavailable(
            f"process {pid}: attaching with gdb supports {MACHINE}, not {machine}; start the job with gpufrag run, "
            "or use Python 3.14"
        )
    library = _find_exporting(pid, _C_LIBRARY, ("mmap",), proc)
    if library is None:
        raise Unavailable(f"process {pid} has no C library (a static program); start the job with gpufrag run instead")
    add, new, run, release = (interpreter[0].at(name, interpreter[1]) for name in INTERPRETER)
    return Functions(add, new, run, release, library[0].at("mmap", library[1]))


def _find_exporting(pid: int, named: str, names: tuple[str, ...], proc: Path) -> tuple[Exports, int] | None:
    """Return the exports and start of the first loaded file that has all `names`.

    Looks at the program itself and at the files whose names match `named`.
    """
    for place, (start, path) in enumerate(_maps(pid, proc)):
        if place == 0 or re.match(named, os.path.basename(path)):
            try:
                found = exports(proc / str(pid) / "root" / path.lstrip("/"))
            except (OSError, BadInput):  # replaced since the process started
                continue
            if all(name in found.addresses for name in names):
                return found, start
    return None


def is_visible(pid: int, path: Path, proc: Path = PROC) -> bool:
    """Return whether the absolute path leads to the same file in the target's file system."""
    try:
        return os.path.samestat((proc / str(pid) / "root" / path.relative_to("/")).stat(), path.stat())
    except FileNotFoundError:
        return False


def _python_version(pid: int, proc: Path) -> tuple[int, int]:
    paths = [path for _, path in _maps(pid, proc)]
    match = next((found for form in _VERSIONS for path in paths if (found := re.search(form, path))), None)
    if match is None:
        program = paths[0] if paths else "part of the kernel, or about to end"
        raise UsageError(f"process {pid} is {program}, not a Python 3; give the pid of the training process")
    major, minor = (int(part) for part in match.groups())
    if (major, minor) < OLDEST:
        raise UsageError(f"process {pid} runs Python {major}.{minor}; the agent needs {OLDEST[0]}.{OLDEST[1]} or newer")
    return major, minor


def _maps(pid: int, proc: Path) -> Iterator[tuple[int, str]]:
    """Yield start and path of each mapped file, the program first."""
    seen = set()
    for line in (proc / str(pid) / "maps").read_text(errors="replace").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/") and words[2].strip("0") == "" and words[5] not in seen:
            seen.add(words[5])
            yield int(words[0].partition("-")[0], 16), words[5]


def _status_of(process: str, proc: Path) -> Mapping[str, str]:
    """Raises OSError if there is no such process."""
    lines = (proc / process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _ptrace_scope(proc: Path) -> int:
    """0, no restriction, on kernels without Yama."""
    try:
        return int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


@contextmanager
def _kernel_errors(pid: int) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        raise Unavailable(f"no process {pid}; find the pid with: ps -e | grep python") from None
    except PermissionError as error:
        raise Unavailable(
            f"process {pid}: cannot read {error.filename}; run this command as root or with CAP_SYS_PTRACE"
        ) from None
