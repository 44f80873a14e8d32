"""Files that the sidecar skips in the agents' folder: counted, logged once, without effect on other ranks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_agents import NOTHING, Clock, FakeAgent, process_sample, skipped
from gpufrag.config.sidecar import FolderSettings
from gpufrag.sidecar import sample_files
from gpufrag.sidecar.processes import ProcessReader, Reading
from gpufrag.wire.folder import open_plain
from gpufrag.wire.sample import MAX_BYTES, encode
from unix_sockets import bind


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "torn"),
        (b"{", "torn"),
        (b"null", "torn"),
        (b"\xff\xfe", "torn"),
        (b'{"schema": 1}', "torn"),
        (b'{"schema": 99, "anything": 1}', "newer"),
        (b"[" * 100_000, "torn"),
        (b" " * ((1 << 20) + 1), "huge"),
    ],
)
def test_bad_file_does_not_hide_the_others(start_agent, reader, content: bytes, reason: str) -> None:
    good, bad = start_agent(), start_agent(process_sample(1))
    bad.leave(content)
    reading = reader.read()
    assert [rank.sample for rank in reading.ranks] == [good.sample]
    assert skipped(reading) == {reason: 1}


def test_file_that_the_network_does_not_return_hides_no_other(start_agent, reader, monkeypatch) -> None:
    good, bad = start_agent(), start_agent(process_sample(1))

    def open_file(path: Path) -> Any:  # reading a process's memory at 0 is EIO
        return open("/proc/self/mem", "rb", buffering=0) if path == bad.file else open_plain(path)

    monkeypatch.setattr(sample_files, "open_plain", open_file)
    reading = reader.read()
    assert [rank.sample for rank in reading.ranks] == [good.sample]
    assert skipped(reading) == {"torn": 1}


def test_file_beyond_the_largest_sample_is_skipped(start_agent, tmp_path: Path) -> None:
    start_agent().leave(b" " * (MAX_BYTES + 1))
    reader = ProcessReader(tmp_path, FolderSettings(max_file_size=1 << 40))
    assert skipped(reader.read()) == {"huge": 1}


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_no_content_fails_the_reading(tmp_path: Path, data: st.DataObject) -> None:
    whole = encode(process_sample())
    cut, flipped = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, len(whole) - 1))
    kinds = st.sampled_from([whole[:cut], whole[:flipped] + bytes([whole[flipped] ^ 32]) + whole[flipped + 1 :]])
    agent = FakeAgent(tmp_path)
    agent.leave(data.draw(kinds | st.binary(max_size=200)))
    reading = ProcessReader(tmp_path, FolderSettings(), Clock()).read()
    assert len(reading.ranks) + sum(reading.skipped.values()) == 1


def test_links_are_not_followed(agent: FakeAgent, reader: ProcessReader, tmp_path: Path) -> None:
    outside = tmp_path / ".outside"
    outside.write_bytes(encode(agent.sample))
    agent.file.symlink_to(outside)
    assert (reader.read().ranks, skipped(reader.read())) == ((), {"alien": 1})


def test_linked_socket_is_not_connected_to(agent: FakeAgent, reader: ProcessReader, tmp_path: Path) -> None:
    with bind(tmp_path / ".other", 1) as other:
        other.setblocking(False)
        agent.publish()
        agent.socket.symlink_to(tmp_path / ".other")
        assert [rank.alive for rank in reader.read().ranks] == [False]
        with pytest.raises(BlockingIOError):
            other.accept()


def test_pipe_does_not_block_the_reading(agent: FakeAgent, reader: ProcessReader) -> None:
    os.mkfifo(agent.file)
    assert skipped(reader.read()) == {"alien": 1}


def test_file_replaced_after_listing_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    assert sample_files.read(tmp_path / "link", 1000) is sample_files.Skip.ALIEN
    assert sample_files.read(tmp_path / "pipe", 1000) is sample_files.Skip.ALIEN
    assert sample_files.read(tmp_path / "gone", 1000) is None


def test_copy_under_another_name_is_alien(agent: FakeAgent, reader: ProcessReader) -> None:
    agent.start()
    shutil.copy(agent.file, agent.folder / "host-7-7.json")
    reading = reader.read()
    assert (len(reading.ranks), skipped(reading)) == (1, {"alien": 1})


def test_unreadable_file_is_counted(agent: FakeAgent, reader: ProcessReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    agent.start()
    monkeypatch.setattr(os, "open", refuse)  # root may read everything, so the system's own refusal needs a user
    assert skipped(reader.read()) == {"denied": 1}


def test_files_of_another_user_are_denied(start_agent, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("others")
    unreadable, deaf = start_agent(folder=folder), start_agent(process_sample(1), folder)
    unreadable.file.chmod(0)
    unreadable.socket.chmod(0o666)
    deaf.socket.chmod(0)
    temp = Path(tempfile.gettempdir())
    with as_nobody(folder, *(parent for parent in folder.parents if temp in parent.parents)):
        assert ProcessReader(folder, FolderSettings()).read() == Reading((), NOTHING | {"denied": 2})


@contextmanager
def as_nobody(*folders: Path) -> Iterator[None]:
    """Without root's rights, if we have them, but with a way into `folders`."""
    if os.geteuid() != 0:
        yield
        return
    modes = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in zip(folders, modes):
            folder.chmod(mode)


def test_skipped_files_are_logged_once(agent: FakeAgent, reader: ProcessReader, caplog: Any) -> None:
    agent.leave(b"{")
    for _ in range(3):
        reader.read()
    (agent.folder / "notes.txt").touch()
    reader.read()
    assert [record.fields for record in caplog.records] == [
        {
            "reason": "torn",
            "count": 1,
            "files": agent.name.sample,
            "remedy": sample_files.REMEDIES[sample_files.Skip.TORN],
        },
        {"reason": "alien", "count": 1, "files": "notes.txt"},
    ]
