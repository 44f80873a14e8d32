"""The process to attach to: everything that can be known about it before it is touched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput, Unavailable, UsageError
from .elf import Exports, exports
from .permission import Caller, obstacle, status_of

OLDEST, REMOTE_EXEC = (3, 10), (3, 14)
"""The first Python that the agent runs in, and the first one that takes scripts from outside by itself."""
MACHINE = "x86_64"
"""The one whose registers in_gdb knows."""
PAYLOAD = Path(__file__).resolve().parent / "payload.py"
INTERPRETER = ("Py_AddPendingCall", "PyRun_SimpleString")
_VERSIONS = (r"/libpython(\d)\.(\d+)", r"/python(\d)\.(\d+)$", r"\.cpython-(\d)(\d+)-", r"/python(\d)\.(\d+)/")
"""Where a file's path tells the version; the surest first."""
_PYTHON, _C_LIBRARY = r"(lib)?python", r"libc[.-]|ld-musl"


class Target(NamedTuple):
    """A process that may be asked; `uid` and `gid` are its effective ones, `python` its version."""

    pid: int
    uid: int
    gid: int
    python: tuple[int, int]
    environment: Mapping[str, str]
    """As it was when the process began."""


class Functions(NamedTuple):
    """Addresses in the process."""

    add_pending_call: int
    run_string: int
    mmap: int


class Loaded(NamedTuple):
    """What a file exports, and where its first byte lies in the process."""

    exports: Exports
    start: int

    def at(self, name: str) -> int:
        return self.exports.at(name, self.start)


def examine(pid: int, caller: Caller, proc: Path = Path("/proc")) -> Target:
    """Raises UsageError for a process that is not one to ask, Unavailable for one that cannot be asked now."""
    if pid == os.getpid():
        raise UsageError(f"process {pid} is this command itself; give the pid of the training process")
    with _in_words(pid):
        _refuse(pid, caller, proc)
        status = status_of(str(pid), proc)
        environment = _environment((proc / str(pid) / "environ").read_bytes())
        uid, gid = (int(status[key].split()[1]) for key in ("Uid", "Gid"))
        return Target(pid, uid, gid, _python(pid, proc), environment)


def functions(pid: int, proc: Path = Path("/proc")) -> Functions:
    """Where the interpreter and the C library have what is called. Raises Unavailable where they do not have it."""
    with _in_words(pid):  # it may end at any moment
        try:
            return _functions(pid, proc)
        except Unavailable:
            if not any(_maps(pid, proc)):  # it had some, and has given its memory back: then that is the reason
                raise ProcessLookupError from None
            raise


@contextmanager
def _in_words(pid: int) -> Iterator[None]:
    """What the kernel's account of a process raises where that has ended, or is not ours to read."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        raise Unavailable(f"no process {pid} here, or no longer; see its pid with: ps -e | grep python") from None
    except PermissionError as error:
        raise Unavailable(
            f"process {pid}: {error.filename} cannot be read; CAP_SYS_PTRACE, or root, is needed"
        ) from None


def _functions(pid: int, proc: Path) -> Functions:
    interpreter = _exporting(pid, _PYTHON, INTERPRETER, proc)
    if interpreter is None:
        raise Unavailable(
            f"process {pid}: its interpreter is stripped or linked in a way that shows no "
            f"{' and '.join(INTERPRETER)}; begin the job with gpufrag run instead"
        )
    if interpreter.exports.machine != MACHINE:
        raise Unavailable(
            f"process {pid}: gdb's way in is for {MACHINE}, and this is {interpreter.exports.machine}; "
            "begin the job with gpufrag run, or use Python 3.14"
        )
    library = _exporting(pid, _C_LIBRARY, ("mmap",), proc)
    if library is None:
        raise Unavailable(f"process {pid}: no C library is loaded (a static program); begin the job with gpufrag run")
    add, run = (interpreter.at(name) for name in INTERPRETER)
    return Functions(add, run, library.at("mmap"))


def _refuse(pid: int, caller: Caller, proc: Path) -> None:
    """In the order in which a user would mend it."""
    state = status_of(str(pid), proc).get("State", "?")
    if state[0] in "ZX":
        raise Unavailable(f"process {pid} has ended; its parent has not taken note of that yet")
    if state[0] in "Tt":
        raise Unavailable(f"process {pid} is stopped; let it go on first: kill -CONT {pid}")
    if (found := obstacle(pid, caller, proc)) is not None:
        raise Unavailable(f"process {pid} cannot be attached to: {found}")
    if (proc / str(pid) / "ns/pid").readlink() != (proc / "self/ns/pid").readlink() or not visible(pid, PAYLOAD, proc):
        raise Unavailable(
            f"process {pid} is in another container: it does not see {PAYLOAD}; "
            "run this command inside that container, with a gpufrag that is installed there"
        )


def visible(pid: int, path: Path, proc: Path = Path("/proc")) -> bool:
    """Whether the absolute path leads to the same file in the target's file system."""
    try:
        return os.path.samestat((proc / str(pid) / "root" / path.relative_to("/")).stat(), path.stat())
    except FileNotFoundError:
        return False


def _python(pid: int, proc: Path) -> tuple[int, int]:
    paths = [path for _, path in _maps(pid, proc)]
    match = next((found for form in _VERSIONS for path in paths if (found := re.search(form, path))), None)
    if match is None:
        program = paths[0] if paths else "a part of the kernel, or just ending"
        raise UsageError(f"process {pid} is {program}, not a Python 3; give the pid of the training process itself")
    major, minor = (int(part) for part in match.groups())
    if (major, minor) < OLDEST:
        raise UsageError(f"process {pid} runs Python {major}.{minor}; the agent needs {OLDEST[0]}.{OLDEST[1]} or newer")
    return major, minor


def _maps(pid: int, proc: Path) -> Iterator[tuple[int, str]]:
    """Start and path of each file in its memory, the program first."""
    seen = set()
    for line in (proc / str(pid) / "maps").read_text(errors="replace").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/") and words[2].strip("0") == "" and words[5] not in seen:
            seen.add(words[5])
            yield int(words[0].partition("-")[0], 16), words[5]


def _exporting(pid: int, named: str, functions: tuple[str, ...], proc: Path) -> Loaded | None:
    """The first file in its memory, of those so named and the program itself, that exports all of the functions."""
    for place, (start, path) in enumerate(_maps(pid, proc)):
        if place == 0 or re.match(named, os.path.basename(path)):
            try:
                found = exports(proc / str(pid) / "root" / path.lstrip("/"))
            except (OSError, BadInput):  # replaced since the process began
                continue
            if all(name in found.addresses for name in functions):
                return Loaded(found, start)
    return None


def _environment(data: bytes) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs if name}
