"""A rank's part in the agreement: what it has promised, and what becomes of it. Pure: times are told, nothing waits.

    idle ── prepare ─► prepared ── at ─► promised ── confirm ─► confirmed ─► saved ── release ─► idle
      ▲                   │                 │                       └─────► failed ── release ─► idle
      └────── cancel, or time ──────────────┘

What is not confirmed lapses with time, so that whoever began it may die. What is confirmed does not: others save too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Unavailable
from .records import CONFIRMED, FAILED, IDLE, PREPARED, PROMISED, SAVED

CLAIM_S = 60.0
"""Seconds for which a rank keeps itself ready after `prepare`, and after `at` beside its patience."""


@dataclass
class Promise:
    """Of one process; times are of one clock that only goes forward, in seconds."""

    state: str = IDLE
    id: str | None = None
    target: int | None = None
    patience: float = 0.0
    hold: float = 0.0
    path: str | None = None
    error: str | None = None
    leave: bool | None = None
    """Whether to end (True) or to train on; None: not released yet."""
    lapses: float = 0.0

    @property
    def idle(self) -> bool:
        return self.state == IDLE

    def prepare(self, checkpoint: str, now: float) -> None:
        """Take part in it, unless another one is under way; that is seen by the id."""
        self.tidy(now)
        if self.id in (None, checkpoint) and self.state in (IDLE, PREPARED):
            self._begin(checkpoint, now)

    def at(self, checkpoint: str, step: int, now_at: int, now: float, patience: float, hold: float) -> None:
        """Promise to stop at the end of `step`, unless that has ended: `now_at` is the last one that has.

        Raises Unavailable for one that was not prepared, or was given up meanwhile.
        """
        self.tidy(now)
        self._require(checkpoint)
        if self.state == PREPARED and now_at < step:
            self.state, self.target, self.patience, self.hold = PROMISED, step, patience, hold
            self.lapses = now + patience + CLAIM_S

    def confirm(self, checkpoint: str, now: float) -> None:
        self.tidy(now)
        if self.id == checkpoint and self.state == PROMISED:
            self.state = CONFIRMED

    def cancel(self, checkpoint: str) -> None:
        """Too late where it was confirmed: the others save, and wait for this rank in that."""
        if self.id == checkpoint and self.state in (PREPARED, PROMISED):
            self._forget()

    def release(self, checkpoint: str, leave: bool) -> None:
        """Before it has saved too: then it does not wait afterwards."""
        if self.id == checkpoint:
            self.leave = leave
            if self.state in (PREPARED, PROMISED, FAILED):
                self._forget(self.error)

    def due(self, step: int, now: float) -> bool:
        """Whether the trainer, at the end of `step`, has come to where it has promised to stop.

        One that has leapt over it cannot keep its promise.
        """
        self.tidy(now)
        if self.target is None or self.state not in (PROMISED, CONFIRMED) or step < self.target:
            return False
        if step > self.target:
            self.failed(f"step {self.target} never came: the one after it was {step}", now)
            return False
        return True

    def gave_up(self, now: float) -> None:
        """Nobody has confirmed while the trainer waited."""
        self.error = f"no word came within {self.patience:g} s"
        if self.state == PROMISED:
            self._forget(self.error)

    def saved(self, path: str | None) -> None:
        self.state, self.path = SAVED, path

    def failed(self, error: str, now: float) -> None:
        self.state, self.error, self.lapses = FAILED, error, now + CLAIM_S

    def left(self) -> None:
        """The trainer has left the step at which it saved."""
        self._forget()

    def tidy(self, now: float) -> None:
        """Forget what has lapsed."""
        if self.state in (PREPARED, PROMISED, FAILED) and now >= self.lapses:
            self._forget()

    def _begin(self, checkpoint: str, now: float) -> None:
        self._forget()
        self.state, self.id, self.lapses = PREPARED, checkpoint, now + CLAIM_S

    def _require(self, checkpoint: str) -> None:
        if self.id != checkpoint:
            under_way = f"{self.id} is under way" if self.id else "it has lapsed, or was cancelled"
            raise Unavailable(f"checkpoint {checkpoint} was not prepared here: {under_way}")

    def _forget(self, error: str | None = None) -> None:
        self.state, self.id, self.target, self.path = IDLE, None, None, None
        self.error, self.leave = error, None
