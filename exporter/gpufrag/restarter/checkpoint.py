"""The checkpoint that a job is asked for before it is restarted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Protocol

from .kubernetes.owners import Resolved

Waiting = Generator[float, None, "Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """What became of it."""

    text: str
    """A sentence for the event."""
    saved: bool = False
    step: int | None = None
    """The training step at which all ranks saved."""
    let_go: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Tells ranks that stand still that no restart comes. Returns at once."""


class Checkpointer(Protocol):
    """Asks the ranks of a job to save."""

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        """Yields seconds after which it wants to be resumed, so that one job's checkpoint holds up no other's restart.

        Raises CheckpointFailed, after `timeout_s` at the latest. A close of the generator gives up.
        """


class NoCheckpointer:
    """For jobs without a way to be asked."""

    def save(self, job: Resolved, timeout_s: float) -> Waiting:
        return Checkpoint("No checkpoint was asked for: work since the last one that the job saved is lost.")
        yield
