"""A checkpoint on which all ranks of a job agree, asked for before the job is restarted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from ..checkpoint.agree import agree
from ..checkpoint.records import Ask, Heard, NotSaved, Saved, Terms, release
from ..errors import GpufragError, one_line
from .checkpoint import Checkpoint, CheckpointFailed, Waiting
from .kubernetes.owners import Resolved

MAX_PATH = 400
"""Characters of a path that an event names; it is the program's to choose."""
LOOK_S = 0.1
"""Between two looks at whether all have answered."""
NO_CALLBACK = Checkpoint(
    "No rank has told how to save (gpufrag.on_checkpoint): work since the last checkpoint that the job saved is lost."
)
Asker = Callable[[Ask], Heard]


class AgreedCheckpointer:
    """`ranks` gives what reaches a job's ranks; it may block, and raises GpufragError where it cannot.

    Ranks that have saved stand still for `hold_s`, so that nothing is lost until the restart stops them. They are not
    told to end: a pod that ends by itself counts as failed, one that is stopped does not.
    """

    def __init__(
        self, ranks: Callable[[Resolved], Asker], hold_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ranks, self._hold_s, self._clock = ranks, hold_s, clock
        self._threads = ThreadPoolExecutor(4, "gpufrag-checkpoint")

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        """As `checkpoint.Checkpointer`."""
        terms = Terms(f"restart-{secrets.token_hex(6)}", timeout_s, hold=self._hold_s)
        ask = self._ranks(job)
        try:
            saved = yield from self._lead(terms, ask)
        except NotSaved as error:
            raise CheckpointFailed(str(error)) from None
        except GeneratorExit:
            self._let_go(ask, terms.id)
            raise
        if saved is None:
            return NO_CALLBACK
        return Checkpoint(_text(saved), saved=True, step=saved.step, let_go=lambda: self._let_go(ask, terms.id))

    def _let_go(self, ask: Asker, checkpoint: str) -> None:
        with suppress(RuntimeError):  # the interpreter ends, and starts nothing more: the ranks wait for their hold
            self._threads.submit(_give_up, ask, checkpoint)

    def _lead(self, terms: Terms, ask: Asker) -> Generator[float, None, Saved | None]:
        agreement = agree(terms, self._clock)
        try:
            wanted = next(agreement)
            while True:
                if wanted.after:
                    yield wanted.after
                wanted = agreement.send((yield from self._heard(ask, wanted)))
        except StopIteration as end:
            saved: Saved | None = end.value
            return saved

    def _heard(self, ask: Asker, wanted: Ask) -> Generator[float, None, Heard]:
        answer: Future[Heard] = self._threads.submit(ask, wanted)
        while not answer.done():
            yield LOOK_S
        try:
            return answer.result()
        except GpufragError as error:
            return Heard(silent=(str(error),))


def _give_up(ask: Asker, checkpoint: str) -> None:
    """The receiver ends, or has lost its interest: nobody is to wait for it."""
    with suppress(GpufragError):
        ask(Ask("cancel", {"id": checkpoint}))
        ask(release(checkpoint, end=False))


def _text(saved: Saved) -> str:
    ranks = "The only rank" if saved.ranks == 1 else f"All {saved.ranks} ranks"
    where = f" to {one_line(saved.path)[:MAX_PATH]}" if saved.path else ""
    return f"{ranks} saved at step {saved.step}{where}."
