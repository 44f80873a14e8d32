"""A supervisor removes what killed supervisors of its host have left."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpufrag.supervisor.supervisor import remove_stale_files
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
def test_only_this_hosts_stale_files_are_removed(tmp_path: Path, host: str, left: int) -> None:
    with leave(tmp_path, host):
        remove_stale_files(tmp_path, "here")
    assert len(list(tmp_path.iterdir())) == left


def test_files_of_a_listening_supervisor_stay(tmp_path: Path) -> None:
    with leave(tmp_path, "here") as listener:
        listener.listen()
        remove_stale_files(tmp_path, "here")
    assert len(list(tmp_path.iterdir())) == 3
