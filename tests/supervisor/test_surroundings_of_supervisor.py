"""A supervisor removes what killed supervisors of its host have left."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from gpufrag.supervisor import command
from gpufrag.supervisor.supervisor import RestartOptions, Supervisor, remove_stale_files
from gpufrag.wire.folder import FileName
from gpufrag.wire.supervised_job import PAUSE, RECORD, SOCKET, JobFile
from unix_sockets import bind

SUFFIXES = (SOCKET, RECORD, PAUSE)


def leave(folder: Path, host: str) -> socket.socket:
    """The files of a supervisor and its bound socket."""
    names = {suffix: folder / JobFile(FileName(host, 777, 1_700_000_000_000), suffix).name for suffix in SUFFIXES}
    for suffix in (RECORD, PAUSE):
        names[suffix].touch()
    return bind(names[SOCKET])


@pytest.mark.parametrize(("host", "left"), [("here", 0), ("there", 3), ("not-here", 3)])
def test_only_this_hosts_stale_files_are_removed(tmp_path, host, left):
    with leave(tmp_path, host):
        remove_stale_files(tmp_path, "here")
    assert len(list(tmp_path.iterdir())) == left


def test_files_of_a_listening_supervisor_stay(tmp_path):
    with leave(tmp_path, "here") as listener:
        listener.listen()
        remove_stale_files(tmp_path, "here")
    assert len(list(tmp_path.iterdir())) == 3


def test_file_that_cannot_be_removed_keeps_no_other(tmp_path, monkeypatch):
    leave(tmp_path, "here").close()
    unlink = Path.unlink

    def refuse_the_socket(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(SOCKET):
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse_the_socket)
    remove_stale_files(tmp_path, "here")
    assert [path.name.endswith(SOCKET) for path in tmp_path.iterdir()] == [True]


def test_user_without_a_passwd_entry_has_its_number(tmp_path, monkeypatch):
    def missing(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", missing)
    supervisor = Supervisor(["true"], {}, RestartOptions("train"), tmp_path)
    assert supervisor._job(FileName("here", 7, 1)).user == str(os.geteuid())


def test_missing_terminal_leaves_the_signal_mask(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TERMINAL", tmp_path / "none")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert not command.lend_terminal(os.getpgrp())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
