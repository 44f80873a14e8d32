"""The step before a restart: all ranks defragment at one training step, and a restart that this spares is not made."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from ..checkpoint.coordinator import AskRanks, Coordinator, defragmentation
from ..checkpoint.protocol import Saved
from ..units import format_bytes, format_duration
from ..wire.defragmentation import DefragmentOptions
from .backend import Job
from .settings import DefragmentSettings


@dataclass(frozen=True)
class Defragmented:
    """What all ranks did. `text` is a sentence for the Event."""

    text: str
    enough: bool
    """Whether memory was moved and the ratio of every rank is at most the target."""


@dataclass(frozen=True)
class Defragmenter:
    """Asks the ranks of a job. Yields the seconds to wait before the next step; closing the generator gives up."""

    ranks: Callable[[Job], AskRanks]
    settings: DefragmentSettings
    clock: Callable[[], float] = time.monotonic

    def run(self, job: Job) -> Generator[float, None, Defragmented]:
        """Raises DefragmentationFailed."""
        target = self.settings.target_ratio
        terms = defragmentation(DefragmentOptions(target_ratio=target), self.settings.timeout)
        coordinator = Coordinator(self.ranks(job), terms, self.clock)
        threads = ThreadPoolExecutor(1, "gpufrag-defragment")
        try:
            done = yield from coordinator.steps(threads)
        except GeneratorExit:
            with suppress(RuntimeError):  # at interpreter exit no thread starts; the order lapses
                threads.submit(coordinator.give_up)
            raise
        else:
            threads.submit(coordinator.give_up)  # so that the ranks can take part in the next agreement at once
        finally:
            threads.shutdown(wait=False)
        assert done is not None, "only a checkpoint ends without a result"
        return _judge(done, target)


def _judge(done: Saved, target: float) -> Defragmented:
    results = [result for state in done.states for result in state.results]
    moved = sum(result.moved_bytes for result in results)
    pause = format_duration(max((result.seconds for result in results), default=0.0))
    ratios = [result.ratio_after for result in results]
    worst = max((ratio for ratio in ratios if ratio is not None), default=None)
    # without a move the heap between two steps was whole: what is fragmented is a peak within a step
    enough = moved > 0 and worst is not None and None not in ratios and worst <= target
    ranks = "the only rank" if done.ranks == 1 else f"all {done.ranks} ranks"
    ratio = "unknown" if worst is None else f"{worst:.2f}"
    text = f"{format_bytes(moved)} moved on {ranks} at step {done.step}, longest pause {pause}; worst ratio now {ratio}"
    return Defragmented(text, enough)
