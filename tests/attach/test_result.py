"""The payload's report and the agent's socket, which another user may forge."""

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufrag.agent.identity import start_of
from gpufrag.attach.result import agent_socket, poll, read_report, report_path
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


def test_listening_agent_is_found(target: Target, listener: Path) -> None:
    assert agent_socket(target).samefile(listener)


def test_agent_in_the_private_folder_is_found(target: Target, listener: Path, tmp_path: Path) -> None:
    private = tmp_path / f"gpufrag-{UID}"
    private.mkdir()
    listener.rename(private / listener.name)
    elsewhere = target._replace(environment={"TMPDIR": str(tmp_path)})
    assert agent_socket(elsewhere, tmp_path / "shared") == private / listener.name


def test_other_sockets_are_not_the_agents(target: Target, listener: Path, tmp_path: Path) -> None:
    """A dead socket, one of an earlier process with this pid, one of another process."""
    dead = tmp_path / listener.name.replace("host", "dead")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(dead))
    listener.rename(tmp_path / f"host-{os.getpid()}-1234567.sock")
    assert agent_socket(target) is None
    assert agent_socket(target._replace(pid=1)) is None


def test_report_is_a_small_json_object(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert read_report(file) is None
    for text in ("", '{"state": "wai', "[]", "7", "x" * 9000, "[" * 4000, '"' + "x" * 5000 + '"'):
        file.write_text(text)
        assert read_report(file) is None
    file.write_text(json.dumps({"state": "waiting"}))
    assert read_report(file) == {"state": "waiting"}


def test_link_pipe_and_folder_are_no_report(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"state": "begun"}')
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert read_report(tmp_path / "link") is None
    assert read_report(tmp_path / "pipe") is None
    before = os.listdir("/proc/self/fd")
    assert read_report(tmp_path) is None
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_report_folder_is_private_and_temporary(target: Target) -> None:
    with report_path(target) as file:
        status = file.parent.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (UID, 0o700)
    assert not file.parent.exists()


def test_unseen_temp_dir_is_an_error(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufrag.attach.result.is_visible", lambda pid, path: False)
    with pytest.raises(Unavailable, match="set TMPDIR"), report_path(target):
        pass


@pytest.mark.skipif(UID != 0, reason="only root gives folders away")
def test_report_folder_belongs_to_the_targets_user(target: Target) -> None:
    with report_path(target._replace(uid=12345, gid=54321)) as file:
        assert (file.parent.stat().st_uid, file.parent.stat().st_gid) == (12345, 54321)


def test_poll_ends_at_its_timeout() -> None:
    assert poll(lambda: None, 0.0) is None
    answers = iter([None, None, "here"])
    assert poll(lambda: next(answers), 20.0) == "here"
