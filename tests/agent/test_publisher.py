"""The file is the old sample or the new one, whatever happens."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpufrag.agent.publisher import publish


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host-1-2.json"


def test_the_file_is_there_and_nothing_else(path: Path) -> None:
    publish(path, b"one")
    publish(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_other_users_may_read_it_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        publish(path, b"one")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_readers_never_see_a_part(path: Path) -> None:
    samples = [bytes([n]) * 50_000 for n in range(200)]
    publish(path, samples[0])
    writer = threading.Thread(target=lambda: [publish(path, sample) for sample in samples])
    writer.start()
    while writer.is_alive():
        assert path.read_bytes() in samples
    writer.join()


def test_a_full_disk_leaves_the_old_file_and_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(path, b"old")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        publish(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_that_somebody_laid_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear")
    path.with_name(f".{path.name}.tmp").symlink_to(victim)
    publish(path, b"new")
    assert (victim.read_text(), path.read_bytes()) == ("dear", b"new")


def test_a_pipe_that_somebody_laid_holds_nobody_up(path: Path) -> None:
    os.mkfifo(path.with_name(f".{path.name}.tmp"))
    publish(path, b"new")
    assert path.read_bytes() == b"new"


def test_short_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    publish(path, b"0123456789")
    assert path.read_bytes() == b"0123456789"
