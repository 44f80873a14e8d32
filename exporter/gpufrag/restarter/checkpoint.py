"""The checkpoint that a job is asked for before it is restarted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..checkpoint.agree import agree
from ..checkpoint.records import Ask, Heard, NotSaved, Saved, Terms, release
from ..errors import GpufragError, one_line
from .backend import Job

MAX_PATH = 400
"""Characters of a path in an Event; the program chooses the path."""
POLL_S = 0.1
Asker = Callable[[Ask], Heard]
"""Sends a request to all ranks of a job. Blocks; raises GpufragError."""


@dataclass(frozen=True)
class Checkpoint:
    """The outcome. `text` is a sentence for the Event."""

    text: str
    saved: bool = False
    step: int | None = None
    """The training step at which all ranks saved."""
    let_go: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Let the waiting ranks resume training. Returns at once."""


class CheckpointFailed(GpufragError):
    """The ranks were asked and did not save; the text names them and the cause."""


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

    def __init__(self, ranks: Callable[[Job], Asker], hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._hold_s, self._clock = ranks, hold_s, clock
        self._threads = ThreadPoolExecutor(4, "gpufrag-checkpoint")

    def save(self, job: Job, timeout_s: float) -> Saving:
        terms = Terms(f"restart-{secrets.token_hex(6)}", timeout_s, hold=self._hold_s)
        ask = self._ranks(job)
        try:
            saved = yield from self._coordinate(terms, ask)
        except NotSaved as error:
            raise CheckpointFailed(str(error)) from None
        except GeneratorExit:
            self._let_go(ask, terms.id)
            raise
        if saved is None:
            return Checkpoint(
                "No rank has a checkpoint callback (gpufrag.on_checkpoint): work since the job's last checkpoint is lost."
            )
        ranks = "The only rank" if saved.ranks == 1 else f"All {saved.ranks} ranks"
        where = f" to {one_line(saved.path)[:MAX_PATH]}" if saved.path else ""
        text = f"{ranks} saved at step {saved.step}{where}."
        return Checkpoint(text, saved=True, step=saved.step, let_go=lambda: self._let_go(ask, terms.id))

    def _let_go(self, ask: Asker, checkpoint: str) -> None:
        def send() -> None:
            with suppress(GpufragError):
                ask(Ask("cancel", {"id": checkpoint}))
                ask(release(checkpoint, end=False))

        with suppress(RuntimeError):  # at interpreter exit no thread starts; the ranks resume after their hold
            self._threads.submit(send)

    def _coordinate(self, terms: Terms, ask: Asker) -> Generator[float, None, Saved | None]:
        agreement = agree(terms, self._clock)
        try:
            request = next(agreement)
            while True:
                if request.after:
                    yield request.after
                request = agreement.send((yield from self._answers(ask, request)))
        except StopIteration as end:
            saved: Saved | None = end.value
            return saved

    def _answers(self, ask: Asker, request: Ask) -> Generator[float, None, Heard]:
        answer: Future[Heard] = self._threads.submit(ask, request)
        while not answer.done():
            yield POLL_S
        try:
            return answer.result()
        except GpufragError as error:
            return Heard(silent=(str(error),))
