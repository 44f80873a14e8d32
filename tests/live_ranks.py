"""Ranks as threads of the test's process: each trains, listens on its control socket, can save and defragment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufrag.checkpoint.participant import CheckpointRequest, Participant
from gpufrag.checkpoint.protocol import ACTIONS, COMMANDS, Action
from gpufrag.wire.control_server import ControlServer
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.folder import FileName
from gpufrag.wire.sample import Identity

PATIENCE = 20.0


class Ended(BaseException):
    """The process would have ended here."""


class LiveRank:
    """`pause` is how long a step takes, in seconds; `save` None: it cannot save."""

    def __init__(self, folder: Path, rank: int, size: int, save: Callable[[CheckpointRequest], Any] | None) -> None:
        folder.mkdir(exist_ok=True)
        self.identity = Identity("host", 100 + rank, 1.0, rank=rank, world_size=size)
        self.participant, self.pause, self.exited = Participant(end=self._end), 0.002, False
        self.saved: list[int] = []
        self.before_step: Callable[[], object] = lambda: None
        self._save, self._stop, self._ready = save, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()
        assert self._ready.wait(PATIENCE)
        path = folder / FileName.of(self.identity).socket
        self.control = ControlServer(
            path,
            {action.prefix + name: self._command(name, action) for action in ACTIONS for name in COMMANDS},
            ErrorCounter(),
        )

    def close(self) -> None:
        self._stop.set()
        self.control.close()
        if under_way := self.participant.state(self.identity).id:
            self.participant.command("release", {"id": under_way, "exit": False}, self.identity)
        self.thread.join(PATIENCE)

    def _command(self, name: str, action: Action) -> Callable[..., dict[str, Any]]:
        return lambda request: self.participant.command(name, request, self.identity, action)

    def _train(self) -> None:
        if self._save is not None:
            self.participant.register(self._keep, hooked=True)
        for count in range(1_000_000):
            self.before_step()
            try:
                self.participant.optimizer_stepped("optimizer")
                self.participant.boundary(count + 1)  # ignored in a rank with a callback
            except Ended:
                return
            if count == 3:
                self._ready.set()
            if self._stop.wait(self.pause):
                return

    def _keep(self, request: CheckpointRequest) -> Any:
        assert self._save is not None
        result = self._save(request)
        self.saved.append(request.step)
        return result

    def _end(self) -> None:
        self.exited = True
        raise Ended


@contextmanager
def live_ranks(folder: Path, saves: list[Callable[[CheckpointRequest], Any] | None]) -> Iterator[list[LiveRank]]:
    """One for each of `saves`, in one folder."""
    ranks = [LiveRank(folder, rank, len(saves), save) for rank, save in enumerate(saves)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def saves_at(request: CheckpointRequest) -> str:
    return f"/checkpoints/{request.step}"


def fails(request: CheckpointRequest) -> str:
    raise OSError("disk full")
