"""The checkpoint that a job is asked for before it is restarted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..checkpoint.coordinator import AskRanks, Coordinator
from ..checkpoint.protocol import Terms
from .backend import Job


@dataclass(frozen=True)
class Checkpoint:
    """The outcome. `text` is a sentence for the Event."""

    text: str
    saved: bool = False
    step: int | None = None
    """The training step at which all ranks saved."""
    let_go: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Let the waiting ranks resume training. Returns at once."""


Saving = Generator[float, None, Checkpoint]


class Checkpointer(Protocol):
    """Asks the ranks of a job to save."""

    def save(self, job: Job, timeout_s: float) -> Saving:
        """Yield the seconds to wait before the next step. Raises CheckpointFailed. Closing the generator gives up."""


class NoCheckpointer:
    """For restarters without access to the ranks."""

    def save(self, job: Job, timeout_s: float) -> Saving:
        return Checkpoint("No checkpoint was requested: work since the job's last checkpoint is lost.")
        yield


class AgreedCheckpointer:
    """All ranks save at one step and wait up to `hold_s` for the restart, so no work is lost.

    The ranks must not exit after the checkpoint: a pod that exits counts as failed, one that is stopped does not.
    """

    def __init__(
        self, ranks: Callable[[Job], AskRanks], hold_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ranks, self._hold_s, self._clock = ranks, hold_s, clock
        self._threads = ThreadPoolExecutor(4, "gpufrag-checkpoint")

    def save(self, job: Job, timeout_s: float) -> Saving:
        terms = Terms(f"restart-{secrets.token_hex(6)}", timeout_s, hold=self._hold_s)
        coordinator = Coordinator(self._ranks(job), terms, self._clock)
        try:
            saved = yield from coordinator.steps(self._threads)
        except GeneratorExit:
            self._let_go(coordinator)
            raise
        if saved is None:
            text = "No rank has a checkpoint callback (gpufrag.on_checkpoint): work since its last checkpoint is lost."
            return Checkpoint(text)
        return Checkpoint(str(saved), saved=True, step=saved.step, let_go=lambda: self._let_go(coordinator))

    def _let_go(self, coordinator: Coordinator) -> None:
        with suppress(RuntimeError):  # at interpreter exit no thread starts; the ranks resume after their hold
            self._threads.submit(coordinator.give_up)
