"""One process's part in a checkpoint: it promises a step, stops there, has its program save, and waits for the rest.

Commands come in over the control socket, in threads of their own; the program's function runs in the thread that
trains, between two steps. A process that has not told how to save has no hook, and pays nothing for any of this.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..agent.request_fields import seconds, text, whole
from ..agent.steps import Steps
from ..wire.sample import Identity
from .ending import end_process
from .promise import Promise
from .records import CONFIRMED, PROMISED, RankState

logger = logging.getLogger("gpufrag")
NO_STEPS = "no end of a step is told here: import torch before gpufrag.on_checkpoint, or call gpufrag.step_ended()"


@dataclass(frozen=True)
class CheckpointRequest:
    """What the program's function is told."""

    id: str
    """The same in all ranks."""
    step: int
    """That has just ended, the same in all ranks: counted since `on_checkpoint`, or as `step_ended` was told."""


Save = Callable[[CheckpointRequest], "str | os.PathLike[str] | None"]


class Saving:
    """Of one process. `end` is called in the trainer's thread to end it; `clock` is in seconds and never goes back.

    `recording` tells whether that thread records a CUDA graph, which a saving would break.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[], None] = end_process,
        recording: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock, self._end, self._recording = clock, end, recording
        self._changed = threading.Condition()
        self._promise, self._steps = Promise(), Steps()
        self._save: Save | None = None
        self.leaving = False
        """Whether this process has saved, was told to end, and does."""
        self._trainer = 0
        self._counted = self._told = False
        self._step: int | None = None
        self._ended_at: float | None = None
        self._step_seconds: float | None = None
        self._heard_at = 0.0

    @property
    def able(self) -> bool:
        """Whether the program has told how to save."""
        return self._save is not None

    def register(self, save: Save, counted: bool) -> None:
        """For the thread that trains. `counted`: `hooked` is called after each step of an optimizer."""
        self._save, self._trainer, self._counted = save, threading.get_ident(), counted

    def hooked(self, optimizer: object) -> None:
        """An optimizer has stepped. Those that step in the midst of a backward pass do so in another thread."""
        if self._save is None or self._told or threading.get_ident() != self._trainer:
            return
        self._steps.note(optimizer)
        if self._steps.whole and self._steps.count != self._step:
            self._boundary(self._steps.count)

    def ended(self, step: int | None) -> None:
        """The program says so itself; from now on, nothing else does."""
        if self._save is None or threading.get_ident() != self._trainer:
            return
        if step is None:
            step = (self._step or 0) + 1
        if not self._told:
            self._told, self._step = True, None
        self._boundary(step)

    def state(self, identity: Identity) -> RankState:
        with self._changed:
            return self._state(identity)

    def command(self, name: str, request: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
        """Carry out one of the agreement's COMMANDS, and tell how it stands.

        Raises UsageError for a field that is wrong, and Unavailable for a checkpoint that has lapsed here.
        """
        checkpoint, now = text(request, "id"), self._clock()
        with self._changed:
            if name == "prepare":
                self._promise.prepare(checkpoint, now)
            elif name == "at":
                patience, hold = seconds(request, "patience"), seconds(request, "hold")
                self._promise.at(checkpoint, whole(request, "step"), self._step or 0, now, patience, hold)
            elif name == "confirm":
                self._promise.confirm(checkpoint, now)
            elif name == "cancel":
                self._promise.cancel(checkpoint)
            elif name == "release":
                self._promise.release(checkpoint, request.get("exit") is True)
            if self._promise.id == checkpoint:
                self._heard_at = now
            self._changed.notify_all()
            return asdict(self._state(identity))

    def _state(self, identity: Identity) -> RankState:
        promise = self._promise
        promise.tidy(self._clock())
        excuse = NO_STEPS if self.able and not (self._counted or self._told) else None
        return RankState(
            host=identity.host,
            pid=identity.pid,
            rank=identity.rank,
            world_size=identity.world_size,
            id=promise.id,
            state=promise.state,
            callback=self.able,
            step=self._step,
            step_seconds=self._step_seconds,
            target=promise.target,
            path=promise.path,
            error=promise.error or excuse,
        )

    def _boundary(self, step: int) -> None:
        with self._changed:  # so that nobody promises a step that ends just now
            now = self._clock()
            if self._ended_at is not None:
                self._step_seconds = _smoothed(self._step_seconds, now - self._ended_at)
            self._step, self._ended_at = step, now
            due = not self._promise.idle and self._promise.due(step, now)
        if due:
            self._stop_here(step)

    def _stop_here(self, step: int) -> None:
        if not self._is_confirmed():
            return
        saved = self._run(step)
        leave = saved and self._is_to_end()
        self._ended_at = self._clock()
        if leave:
            self._end()

    def _is_confirmed(self) -> bool:
        """Waits for the word, in the trainer's thread, for as long as was promised."""
        with self._changed:
            self._changed.wait_for(lambda: self._promise.state != PROMISED, self._promise.patience)
            if self._promise.state == PROMISED:
                self._promise.gave_up(self._clock())
            return self._promise.state == CONFIRMED

    def _run(self, step: int) -> bool:
        """Whether the program's function has saved; its error is told to whoever asked, and training goes on."""
        save, checkpoint = self._save, self._promise.id
        assert save is not None
        assert checkpoint is not None
        if self._recording():
            self._tell(lambda: self._promise.failed("a CUDA graph was being recorded", self._clock()))
            return False
        try:
            result = save(CheckpointRequest(checkpoint, step))
            path = None if result is None else os.fsdecode(result)
        except Exception as error:
            what = f"the callback raised {type(error).__name__}: {error}"
            logger.exception("gpufrag: the checkpoint callback failed at step %d; training goes on", step)
            self._tell(lambda: self._promise.failed(what, self._clock()))
            return False
        except BaseException:
            self._tell(lambda: self._promise.failed("the program was interrupted while it saved", self._clock()))
            raise
        self._heard_at = self._clock()
        self._tell(lambda: self._promise.saved(path))
        return True

    def _is_to_end(self) -> bool:
        """Waits to be released: whoever ends first would take the others with it before they have saved.

        As long as somebody asks how it stands, he lives, and others still save.
        """
        with self._changed:
            while self._promise.leave is None and (left := self._heard_at + self._promise.hold - self._clock()) > 0:
                self._changed.wait(left)
            leave = self._promise.leave is True
            self._promise.left()
            self.leaving = leave
            return leave

    def _tell(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


def _smoothed(before: float | None, latest: float) -> float:
    """Steps differ, and one that was cut short says little of the next ones."""
    return latest if before is None else before + (latest - before) / 8
