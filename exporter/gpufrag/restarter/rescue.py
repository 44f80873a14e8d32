"""Taking up what others have left half way, at the start and every few minutes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..logs import event
from .announce import Announcer
from .errors import ClusterError
from .finish import Finisher
from .kubernetes.cluster import Owner
from .settings import RestartSettings
from .sweep import Sweep, is_claim

log = logging.getLogger(__name__)


@dataclass
class Rescue:
    """For the worker's thread; times by the steady clock. Also in a dry run: somebody waits for these jobs."""

    sweep: Sweep
    finisher: Finisher
    announcer: Announcer
    settings: RestartSettings
    due_s: float
    complete: bool = False
    """Whether all namespaces have been searched once."""

    def search(self, now_s: float, ours: frozenset[str], take_up: Callable[[Owner], None]) -> bool:
        """Hand each job that was told to stop or go on to `take_up`; whether it looked everywhere."""
        self.due_s = now_s + min(self.settings.sweep, self.settings.retry * 3)
        owners, error = self.sweep.left_behind(now_s, ours)
        for owner in owners:
            if is_claim(owner):
                self._let_go(owner)
            else:
                text = "A restart of this job was left half way, and is brought to its end."
                self.announcer.taken_up(owner.ref, text)
                take_up(owner)
        if error is not None:
            event(log, logging.WARNING, "jobs that were left half way could not be searched for", reason=error)
            return False
        self.due_s, self.complete = now_s + self.settings.sweep, True
        return True

    def _let_go(self, owner: Owner) -> None:
        """Of a claim that nobody ended: nothing has happened to the job."""
        try:
            self.finisher.close(owner)
        except ClusterError as error:  # the next search finds it again
            event(log, logging.WARNING, "a claim could not be taken away", job=owner.ref, reason=error)
        else:
            self.announcer.taken_up(owner.ref, "A restart of this job was given up before it began.")
