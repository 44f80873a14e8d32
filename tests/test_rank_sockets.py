"""Commands to all ranks of a folder, over real sockets, and agreements led by them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpufrag.checkpoint import rank_sockets
from gpufrag.checkpoint.agree import agree
from gpufrag.checkpoint.records import Heard, NotSaved, Saved, Terms, release
from gpufrag.errors import Unavailable
from live_ranks import PATIENCE, fails, live_ranks, saves_at

TERMS = Terms("one", timeout=PATIENCE, lead=0.05)


def _save(folder: Path) -> Saved | None:
    return rank_sockets.lead(agree(TERMS, time.monotonic), rank_sockets.in_folder(folder))


@contextmanager
def _answering(path: Path, answer: bytes) -> Iterator[None]:
    """Somebody who listens where a rank would, and says `answer` to whoever comes first."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(PATIENCE)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_all_ranks_save_at_one_step_and_end_when_they_are_released(tmp_path: Path, size: int) -> None:
    with live_ranks(tmp_path, [saves_at] * size) as ranks:
        saved = _save(tmp_path)
        assert saved is not None
        assert [rank.saved for rank in ranks] == [[saved.step]] * size
        assert saved == Saved(saved.step, f"/checkpoints/{saved.step}", size)
        assert not any(rank.exited for rank in ranks)
        ask = release("one", end=True)
        rank_sockets.broadcast(tmp_path, ask.command, ask.fields)
        for rank in ranks:
            rank.thread.join(PATIENCE)
        assert all(rank.exited for rank in ranks)


def test_collective_saving_finds_every_rank_there(tmp_path: Path) -> None:
    barrier = threading.Barrier(4, timeout=PATIENCE)

    def save(request) -> str:
        barrier.wait()
        return "together"

    with live_ranks(tmp_path, [save] * 4) as ranks:
        ranks[3].pause = 0.004  # a straggler
        assert _save(tmp_path) is not None
        assert len({step for rank in ranks for step in rank.saved}) == 1


def test_a_callback_that_raises_leaves_all_of_them_training(tmp_path: Path) -> None:
    with live_ranks(tmp_path, [saves_at, fails]) as ranks:
        with pytest.raises(NotSaved, match="rank 1 did not save: the callback raised OSError: disk full"):
            _save(tmp_path)
        before = [rank.saving.state(rank.identity).step for rank in ranks]
        deadline = time.monotonic() + PATIENCE
        while not all(rank.saving.state(rank.identity).step > old for rank, old in zip(ranks, before)):  # type: ignore[operator]
            assert time.monotonic() < deadline


def test_a_rank_without_a_callback_is_named(tmp_path: Path) -> None:
    with live_ranks(tmp_path, [saves_at, None]), pytest.raises(NotSaved, match="rank 1 has no checkpoint callback"):
        _save(tmp_path)


def test_no_callback_anywhere_is_no_failure(tmp_path: Path) -> None:
    with live_ranks(tmp_path, [None, None]):
        assert _save(tmp_path) is None


def test_what_is_dead_or_no_rank_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "notes.sock").write_text("")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "host-5-1.sock"))
    (tmp_path / "host-6-1.sock").symlink_to(tmp_path / "host-5-1.sock")
    assert rank_sockets.broadcast(tmp_path, "status", {"id": "one"}) == Heard()
    assert rank_sockets.broadcast(tmp_path / "missing", "status", {"id": "one"}) == Heard()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'{"ok": false, "error": "no such command"}\n', "no such command"),
        (b'{"ok": true, "pid": "x"}\n', "an answer that is none"),
        (b"", "closed the connection"),
    ],
)
def test_an_answer_that_is_none_is_told(tmp_path: Path, answer: bytes, reason: str) -> None:
    with _answering(tmp_path / "host-5-1.sock", answer):
        (silent,) = rank_sockets.broadcast(tmp_path, "status", {"id": "one"}).silent
    assert silent.startswith("host-5-1")
    assert reason in silent


def test_one_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_sockets, "PATIENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "host-5-1.sock"))
        listener.listen()
        heard = rank_sockets.broadcast(tmp_path, "status", {"id": "one"})
    assert "no answer" in heard.silent[0]


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="it must be the folder of the job"):
        rank_sockets.broadcast(tmp_path / "file", "status", {})
