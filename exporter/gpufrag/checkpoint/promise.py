"""A rank's side of the protocol, as a state machine. Pure: times are arguments, nothing waits.

    idle ── prepare ─► prepared ── at ─► promised ── confirm ─► confirmed ─► saved ── release ─► idle
      ▲                   │                 │                       └─────► failed ── release ─► idle
      └────── cancel, or timeout ───────────┘

What is not confirmed lapses, so the coordinator may die at any time. What is confirmed does not: other ranks save too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Unavailable
from .protocol import CONFIRMED, FAILED, IDLE, PREPARED, PROMISED, SAVED

CLAIM_S = 60.0
"""An unconfirmed state lapses after this time; a promise, after its patience in addition."""


@dataclass
class Promise:
    """The checkpoint that one process takes part in. Times are in seconds of one monotonic clock."""

    state: str = IDLE
    id: str | None = None
    target: int | None = None
    patience: float = 0.0
    hold: float = 0.0
    path: str | None = None
    error: str | None = None
    leave: bool | None = None
    """Whether to end the process (True) or to continue (False) after saving; None: not released yet."""
    lapses_at: float = 0.0

    def prepare(self, checkpoint: str, now: float) -> None:
        """Take part, unless another checkpoint is in progress; the caller sees that from `id`."""
        self.lapse(now)
        if self.id in (None, checkpoint) and self.state in (IDLE, PREPARED):
            self._reset()
            self.state, self.id, self.lapses_at = PREPARED, checkpoint, now + CLAIM_S

    def at(self, checkpoint: str, step: int, last_step: int, now: float, patience: float, hold: float) -> None:
        """Promise to stop at the end of `step` if it is after `last_step`, the last one that ended.

        Raises Unavailable if the checkpoint is not prepared, or not any more.
        """
        self.lapse(now)
        if self.id != checkpoint:
            why = f"{self.id} is in progress" if self.id else "it has lapsed or was cancelled"
            raise Unavailable(f"checkpoint {checkpoint} is not prepared here: {why}")
        if self.state == PREPARED and last_step < step:
            self.state, self.target, self.patience, self.hold = PROMISED, step, patience, hold
            self.lapses_at = now + patience + CLAIM_S

    def confirm(self, checkpoint: str, now: float) -> None:
        self.lapse(now)
        if self.id == checkpoint and self.state == PROMISED:
            self.state = CONFIRMED

    def cancel(self, checkpoint: str) -> None:
        """Has no effect after `confirm`: the other ranks save, and need this rank for it."""
        if self.id == checkpoint and self.state in (PREPARED, PROMISED):
            self._reset()

    def release(self, checkpoint: str, leave: bool) -> None:
        """May come before the rank has saved; then it does not wait afterwards."""
        if self.id == checkpoint:
            self.leave = leave
            if self.state in (PREPARED, PROMISED, FAILED):
                self._reset(self.error)

    def is_due(self, step: int, now: float) -> bool:
        """Return whether the process must stop at the end of `step`. Fails if the promised step was skipped."""
        self.lapse(now)
        if self.target is None or self.state not in (PROMISED, CONFIRMED) or step < self.target:
            return False
        if step > self.target:
            self.failed(f"step {self.target} never ended; the next one was {step}", now)
            return False
        return True

    def expired(self) -> None:
        """No `confirm` came while the process waited at the step."""
        if self.state == PROMISED:
            self._reset(f"not confirmed within {self.patience:g} s")

    def saved(self, path: str | None) -> None:
        self.state, self.path = SAVED, path

    def failed(self, error: str, now: float) -> None:
        self.state, self.error, self.lapses_at = FAILED, error, now + CLAIM_S

    def left(self) -> None:
        """The process continues after its step, or ends."""
        self._reset()

    def lapse(self, now: float) -> None:
        if self.state in (PREPARED, PROMISED, FAILED) and now >= self.lapses_at:
            self._reset()

    def _reset(self, error: str | None = None) -> None:
        self.state, self.id, self.target, self.path = IDLE, None, None, None
        self.error, self.leave = error, None
