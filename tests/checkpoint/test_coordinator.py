"""The coordinator against ranks that listen on real sockets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufrag.checkpoint import coordinator as module
from gpufrag.checkpoint.coordinator import Coordinator, ask_folder, ranks_in
from gpufrag.checkpoint.protocol import Answers, CheckpointFailed, Saved, Terms
from gpufrag.errors import Unavailable
from live_ranks import PATIENCE, LiveRank, fails, live_ranks, saves_at
from unix_sockets import bind

TERMS = Terms("one", timeout=PATIENCE, lead=0.05)
STATUS = ("status", {"id": "one"})


def _save(folder: Path) -> Saved | None:
    return Coordinator(ranks_in(folder), TERMS).save()


def _steps(ranks: list[LiveRank]) -> list[int]:
    return [rank.participant.state(rank.identity).step or 0 for rank in ranks]


@pytest.mark.parametrize("size", [1, 2, 8])
def test_all_ranks_save_at_one_step_and_end_when_released(tmp_path, size):
    with live_ranks(tmp_path, [saves_at] * size) as ranks:
        coordinator = Coordinator(ranks_in(tmp_path), TERMS)
        saved = coordinator.save()
        assert saved is not None
        assert [rank.saved for rank in ranks] == [[saved.step]] * size
        assert saved == Saved(saved.step, f"/checkpoints/{saved.step}", size)
        assert not any(rank.exited for rank in ranks)
        coordinator.release(end=True)
        for rank in ranks:
            rank.thread.join(PATIENCE)
        assert all(rank.exited for rank in ranks)


def test_stepwise_coordination_never_blocks_its_thread(tmp_path):
    with live_ranks(tmp_path, [saves_at] * 2) as ranks, ThreadPoolExecutor(1) as threads:
        results: list[Saved | None] = []

        def collect() -> Iterator[float]:
            results.append((yield from Coordinator(ranks_in(tmp_path), TERMS).steps(threads)))

        for delay_s in collect():
            time.sleep(delay_s)
        assert [rank.saved for rank in ranks] == [[saved.step for saved in results if saved]] * 2


def test_give_up_lets_saved_ranks_continue(tmp_path):
    with live_ranks(tmp_path, [saves_at] * 2) as ranks:
        coordinator = Coordinator(ranks_in(tmp_path), TERMS)
        saved = coordinator.save()
        assert saved is not None
        coordinator.give_up()
        deadline = time.monotonic() + PATIENCE
        while min(_steps(ranks)) <= saved.step:
            assert time.monotonic() < deadline
        assert not any(rank.exited for rank in ranks)


def test_collective_save_finds_every_rank(tmp_path):
    barrier = threading.Barrier(4, timeout=PATIENCE)

    def save(request) -> str:
        barrier.wait()
        return "together"

    with live_ranks(tmp_path, [save] * 4) as ranks:
        ranks[3].pause = 0.004  # a straggler
        assert _save(tmp_path) is not None
        assert len({step for rank in ranks for step in rank.saved}) == 1


def test_raising_callback_fails_the_checkpoint_and_all_continue(tmp_path):
    with live_ranks(tmp_path, [saves_at, fails]) as ranks:
        with pytest.raises(CheckpointFailed, match="rank 1 did not save: the callback raised OSError: disk full"):
            _save(tmp_path)
        before, deadline = _steps(ranks), time.monotonic() + PATIENCE
        while not all(step > old for step, old in zip(_steps(ranks), before)):
            assert time.monotonic() < deadline


def test_no_callback_anywhere_returns_none(tmp_path):
    with live_ranks(tmp_path, [None, None]):
        assert _save(tmp_path) is None


def test_dead_linked_and_foreign_sockets_are_left_out(tmp_path):
    (tmp_path / "notes.sock").write_text("")
    bind(tmp_path / "host-5-1.sock").close()
    (tmp_path / "host-6-1.sock").symlink_to(tmp_path / "host-5-1.sock")
    assert ask_folder(tmp_path, *STATUS) == Answers()
    assert ask_folder(tmp_path / "missing", *STATUS) == Answers()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'{"ok": false, "error": "no such command"}\n', "host-5-1: no such command"),
        (b'{"ok": true, "pid": "x"}\n', "host-5-1: invalid answer (pid is 'x', not a whole number"),
        (b"", "host-5-1.sock: closed the connection"),
    ],
)
def test_unusable_answer_is_reported(tmp_path, answer, reason):
    with bind(tmp_path / "host-5-1.sock", 1) as listener:

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        (silent,) = ask_folder(tmp_path, *STATUS).silent
        thread.join(PATIENCE)
    assert silent.startswith(reason)


def test_silent_rank_is_reported_and_delays_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 0.5)
    with live_ranks(tmp_path, [None]) as ranks, bind(tmp_path / "host-5-1.sock", 1):
        answers = ask_folder(tmp_path, *STATUS)
        assert answers.silent == ("host-5-1.sock: no answer within 0.5 s",)
        assert [one.pid for one in answers.ranks] == [ranks[0].identity.pid]


def test_named_ranks_are_asked_only_at_their_own_sockets(tmp_path):
    """In a shared folder another user can bind a socket under any rank's name."""
    with live_ranks(tmp_path, [None]) as ranks:
        own = ranks[0].control.path
        assert len(ask_folder(tmp_path, *STATUS, pids={ranks[0].identity.pid}).ranks) == 0
        own.rename(tmp_path / f"host-{os.getpid()}-1.sock")
        assert len(ask_folder(tmp_path, *STATUS, pids={os.getpid()}).ranks) == 1
        assert ask_folder(tmp_path, *STATUS, pids={5}) == Answers()


def test_unreadable_or_crowded_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="it must be the job's"):
        ask_folder(tmp_path / "file", *STATUS)
    monkeypatch.setattr(module, "MAX_RANKS", 1)
    for pid in (5, 6):
        bind(tmp_path / f"host-{pid}-1.sock").close()
    with pytest.raises(Unavailable, match="give each job its own folder"):
        ask_folder(tmp_path, *STATUS)
