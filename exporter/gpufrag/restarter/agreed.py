"""A checkpoint on which all ranks of a job agree, asked for before the job is restarted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..checkpoint.coordinator import AskRanks, Coordinator
from ..checkpoint.protocol import Terms
from .checkpoint import Checkpoint, Waiting
from .kubernetes.owners import Resolved

NO_CALLBACK = Checkpoint(
    "No rank has told how to save (gpufrag.on_checkpoint): work since the last checkpoint that the job saved is lost."
)


class AgreedCheckpointer:
    """`ranks` gives what reaches a job's ranks; it may block, and raises GpufragError where it cannot.

    Ranks that have saved stand still for `hold_s`, so that nothing is lost until the restart stops them. They are not
    told to end: a pod that ends by itself counts as failed, one that is stopped does not.
    """

    def __init__(
        self, ranks: Callable[[Resolved], AskRanks], hold_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ranks, self._hold_s, self._clock = ranks, hold_s, clock
        self._threads = ThreadPoolExecutor(4, "gpufrag-checkpoint")

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        """As `checkpoint.Checkpointer`."""
        terms = Terms(f"restart-{secrets.token_hex(6)}", timeout_s, hold=self._hold_s)
        coordinator = Coordinator(self._ranks(job), terms, self._clock)
        try:
            saved = yield from coordinator.steps(self._threads)
        except GeneratorExit:
            self._give_up(coordinator)
            raise
        if saved is None:
            return NO_CALLBACK
        return Checkpoint(str(saved), saved=True, step=saved.step, let_go=lambda: self._give_up(coordinator))

    def _give_up(self, coordinator: Coordinator) -> None:
        with suppress(RuntimeError):  # the interpreter is ending: the ranks wait until their hold is over
            self._threads.submit(coordinator.give_up)
