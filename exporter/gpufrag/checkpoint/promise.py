"""A rank's side of the protocol, as a state machine. Pure: times are arguments, nothing waits.

    idle ── prepare ─► prepared ── at ─► promised ── confirm ─► confirmed ─► saved ── release ─► idle
      ▲                   │                 │                       └─────► failed ── release ─► idle
      └────── cancel, or timeout ───────────┘

What is not confirmed lapses, so the coordinator may die at any time. A confirmed checkpoint does not: other ranks save
too. A defragmentation does until it runs, and a checkpoint replaces it until then. It ends without a wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Unavailable
from ..wire.defragmentation import DefragmentOptions, Result
from .protocol import CHECKPOINT, CONFIRMED, DEFRAGMENT, FAILED, IDLE, PREPARED, PROMISED, SAVED, Action

CLAIM_S = 60.0
"""An unconfirmed state lapses after this time; a promise, after its patience in addition."""


@dataclass
class Promise:
    """The checkpoint or defragmentation that one process takes part in. Times are in seconds of one monotonic clock."""

    state: str = IDLE
    id: str | None = None
    action: Action = CHECKPOINT
    options: DefragmentOptions | None = None
    target: int | None = None
    patience: float = 0.0
    hold: float = 0.0
    running: bool = False
    """The process saves or defragments now."""
    path: str | None = None
    results: tuple[Result, ...] = ()
    error: str | None = None
    leave: bool | None = None
    """Whether to end the process (True) or to continue (False) after saving; None: not released yet."""
    lapses_at: float = 0.0

    @property
    def _can_be_dropped(self) -> bool:
        return not self.running and (self.action is DEFRAGMENT or self.state in (PREPARED, PROMISED, FAILED))

    def prepare(
        self, checkpoint: str, now: float, action: Action = CHECKPOINT, options: DefragmentOptions | None = None
    ) -> None:
        """Take part, unless another checkpoint or defragmentation is in progress; the caller sees that from `id`."""
        self.lapse(now)
        replaces = action is CHECKPOINT and self.action is DEFRAGMENT and self._can_be_dropped
        if replaces or (self.id in (None, checkpoint) and self.state in (IDLE, PREPARED)):
            self._reset()
            self.state, self.id, self.lapses_at = PREPARED, checkpoint, now + CLAIM_S
            self.action, self.options = action, options

    def at(self, checkpoint: str, step: int, last_step: int, now: float, patience: float, hold: float) -> None:
        """Promise to stop at the end of `step` if it is after `last_step`, the last one that ended.

        Raises Unavailable if the checkpoint is not prepared, or not any more.
        """
        self.lapse(now)
        if self.id != checkpoint:
            why = f"{self.id} is in progress" if self.id else "it has lapsed or was cancelled"
            raise Unavailable(f"{checkpoint} is not prepared here: {why}")
        if self.state == PREPARED and last_step < step:
            self.state, self.target, self.patience, self.hold = PROMISED, step, patience, hold
            self.lapses_at = now + patience + CLAIM_S

    def confirm(self, checkpoint: str, now: float) -> None:
        self.lapse(now)
        if self.id == checkpoint and self.state == PROMISED:
            self.state, self.lapses_at = CONFIRMED, now + self.hold

    def cancel(self, checkpoint: str) -> None:
        """Has no effect on a confirmed checkpoint: the other ranks save, and need this rank for it."""
        if self.id == checkpoint and self._can_be_dropped and self.state != FAILED:
            self._reset()

    def release(self, checkpoint: str, leave: bool) -> None:
        """May come before the rank has saved; then it does not wait afterwards."""
        if self.id == checkpoint:
            self.leave = leave
            if self._can_be_dropped:
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
        self.state, self.path, self.running = SAVED, path, False

    def defragmented(self, results: tuple[Result, ...], now: float) -> None:
        self.state, self.results, self.running, self.lapses_at = SAVED, results, False, now + CLAIM_S

    def failed(self, error: str, now: float) -> None:
        self.state, self.error, self.running, self.lapses_at = FAILED, error, False, now + CLAIM_S

    def left(self) -> None:
        """The process continues after its step, or ends."""
        self._reset()

    def lapse(self, now: float) -> None:
        if self._can_be_dropped and now >= self.lapses_at:
            self._reset()

    def _reset(self, error: str | None = None) -> None:
        self.state, self.id, self.target, self.path = IDLE, None, None, None
        self.action, self.options, self.running, self.results = CHECKPOINT, None, False, ()
        self.error, self.leave = error, None
