"""A process that trains and can save, as a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpufrag.checkpoint.participant import CheckpointRequest, Participant
from gpufrag.checkpoint.protocol import Action
from gpufrag.wire.sample import Identity

ORDER = ("prepare", "at", "confirm")
WHO = Identity("host", 7, 1.0, rank=3, world_size=8)
PATIENCE = 20.0


def give_order(participant: Participant, action: Action, step: int = 2, commands: Sequence[str] = ORDER) -> None:
    for command in commands:
        participant.command(command, {"id": "two", "step": step, "patience": 1, "hold": 5}, WHO, action)


class Trainer:
    """A thread that trains on request: `step` is one step of one optimizer."""

    def __init__(self, save: Callable[[CheckpointRequest], Any]) -> None:
        self.ended: list[str] = []
        self.participant = Participant(end=lambda: self.ended.append("exit"))
        self._work: list[Callable[[], None]] = []
        self._something = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.do(lambda: self.participant.register(save, hooked=True))

    def start(self, work: Callable[[], None]) -> threading.Event:
        done = threading.Event()
        with self._something:
            self._work.append(lambda: (work(), done.set())[0])
            self._something.notify()
        return done

    def do(self, work: Callable[[], None]) -> None:
        assert self.start(work).wait(PATIENCE)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.do(lambda: self.participant.optimizer_stepped("optimizer"))

    def start_step(self) -> threading.Event:
        return self.start(lambda: self.participant.optimizer_stepped("optimizer"))

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.participant.command(command, {"id": "one", "patience": PATIENCE, "hold": PATIENCE, **fields}, WHO)

    def order(self, step: int, **fields: Any) -> None:
        """Promise that step and confirm it."""
        for command in ORDER:
            self.ask(command, step=step, **fields)

    def close(self) -> None:
        with self._something:
            self._work.append(lambda: threading.current_thread().__setattr__("over", True))
            self._something.notify()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not hasattr(threading.current_thread(), "over"):
            with self._something:
                self._something.wait_for(lambda: self._work)
                work = self._work.pop(0)
            work()
