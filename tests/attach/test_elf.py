"""The functions that a file exports, compared with the running process."""

import ctypes
import os
from pathlib import Path

import pytest

from gpufrag.attach.elf import Exports, exports
from gpufrag.attach.target import INTERPRETER, functions
from gpufrag.errors import BadInput, Unavailable


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def test_addresses_match_the_running_process() -> None:
    found = functions(os.getpid())
    assert found.add_pending_call == _address(ctypes.pythonapi, "Py_AddPendingCall")
    assert found.run_string == _address(ctypes.pythonapi, "PyRun_StringFlags")
    assert found.mmap == _address(ctypes.CDLL(None), "mmap")


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(90), b"\x7fELF\x02\x02" + bytes(90)])
def test_other_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(BadInput, match="not a 64-bit little-endian ELF file"):
        exports(tmp_path / "file")


@pytest.mark.parametrize("length", [6, 40, 64, 200, 5000])
def test_truncated_file_is_an_error(tmp_path: Path, length: int) -> None:
    whole = Path("/proc/self/exe").read_bytes()
    (tmp_path / "torn").write_bytes(whole[:length])
    with pytest.raises(BadInput, match="broken ELF file"):
        exports(tmp_path / "torn")


FOREIGN = Exports("aarch64", 0, True, dict.fromkeys((*INTERPRETER, "mmap"), 64))
EMPTY = Exports("x86_64", 0, True, {})


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (FOREIGN, "supports x86_64, not aarch64; start the job with gpufrag run"),
        (EMPTY, "PyRun_StringFlags, Py_DecRef cannot be found"),
        (None, "PyRun_StringFlags, Py_DecRef cannot be found"),
    ],
    ids=["machine", "stripped", "replaced"],
)
def test_unusable_interpreter_is_refused(there: Exports | None, message: str, monkeypatch) -> None:
    def found(file: Path) -> Exports:
        if there is None:
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return there

    monkeypatch.setattr("gpufrag.attach.target.exports", found)
    with pytest.raises(Unavailable, match=message):
        functions(os.getpid())


def test_hostile_pipe_and_huge_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        exports(tmp_path / "pipe")
    monkeypatch.setattr("gpufrag.attach.elf.MAX_FILE", 10)
    with pytest.raises(BadInput, match="is larger than"):
        exports(Path(os.path.realpath("/proc/self/exe")))
