"""The payload's report and the agent's socket: believed only as far as another user's files can be."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufrag.agent.identity import start_of
from gpufrag.attach.answer import agent_socket, place_for_report, report, until
from gpufrag.attach.target import Target
from gpufrag.errors import Unavailable

UID = os.geteuid()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """This process, as one to be attached to."""
    return Target(os.getpid(), UID, os.getegid(), (3, 11), {"GPUFRAG_DIR": str(tmp_path)})


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    """A socket with the name that this process's agent would give it."""
    path = tmp_path / f"host-{os.getpid()}-{round(start_of('self') * 1000)}.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()
        yield path


def test_an_agent_that_listens_is_found(target: Target, listener: Path) -> None:
    found = agent_socket(target)
    assert found is not None
    assert found.samefile(listener)


def test_in_its_private_folder_too(target: Target, listener: Path, tmp_path: Path) -> None:
    private = tmp_path / f"gpufrag-{UID}"
    private.mkdir()
    listener.rename(private / listener.name)
    elsewhere = target._replace(environment={"TMPDIR": str(tmp_path)})
    assert agent_socket(elsewhere, tmp_path / "shared") == private / listener.name


def test_nothing_else_is_taken_for_one(target: Target, listener: Path, tmp_path: Path) -> None:
    """Not a dead one, not that of an earlier process of this pid, not that of another process."""
    dead = tmp_path / listener.name.replace("host", "dead")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(dead))
    listener.rename(tmp_path / f"host-{os.getpid()}-1234567.sock")
    assert agent_socket(target) is None
    assert agent_socket(target._replace(pid=1)) is None


def test_a_report_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert report(file) is None
    for text in ("", '{"state": "wai', "[]", "7", "x" * 9000, '"' + "x" * 5000 + '"'):
        file.write_text(text)
        assert report(file) is None
    file.write_text(json.dumps({"state": "waiting"}))
    assert report(file) == {"state": "waiting"}


def test_a_link_a_pipe_or_a_folder_in_its_place_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"state": "begun"}')
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert report(tmp_path / "link") is None
    assert report(tmp_path / "pipe") is None
    before = os.listdir("/proc/self/fd")
    assert report(tmp_path) is None
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_its_folder_is_the_targets_own_and_goes(target: Target) -> None:
    with place_for_report(target) as file:
        status = file.parent.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (UID, 0o700)
    assert not file.parent.exists()


def test_a_temp_dir_that_the_target_does_not_see_is_told(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufrag.attach.answer.visible", lambda pid, path: False)
    with pytest.raises(Unavailable, match="set TMPDIR"), place_for_report(target):
        pass


@pytest.mark.skipif(UID != 0, reason="only root gives folders away")
def test_where_the_target_is_another_users_it_may_write_there(target: Target) -> None:
    with place_for_report(target._replace(uid=12345, gid=54321)) as file:
        assert (file.parent.stat().st_uid, file.parent.stat().st_gid) == (12345, 54321)


def test_what_does_not_come_is_not_waited_for_longer_than_was_said() -> None:
    assert until(lambda: None, 0.0) is None
    answers = iter([None, None, "here"])
    assert until(lambda: next(answers), 20.0) == "here"
