"""Searches for restarts that another process began and did not complete: a suspended job must not stay suspended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ..logs import event
from . import decisions
from .backend import BackendError, Job
from .circuit import CircuitBreaker
from .completion import Completion
from .decisions import DecisionLog
from .record import CLAIMED

SEARCH_S, RETRY_SEARCH_S = 300.0, 15.0
"""Between two searches: after a complete one, and after one that failed."""
log = logging.getLogger(__name__)


@dataclass
class Recovery:
    """For the worker's thread; times are by the steady clock. Also runs in a dry run.

    A claim is removed only after `claim_lasts_s`: the job runs, and its claimant may be waiting for a checkpoint.
    """

    completion: Completion
    decisions: DecisionLog
    circuit: CircuitBreaker
    claim_lasts_s: float
    due_s: float
    complete: bool = False
    """Whether one search has been complete."""
    _claims: dict[tuple[str, str | None], float] = field(default_factory=dict)
    """When each claim was first seen."""

    def search(self, now_s: float, ours: frozenset[str], take_over: Callable[[Job], None]) -> bool:
        """Pass unfinished jobs whose uid is not in `ours` to `take_over`. Return whether the search was complete."""
        self.due_s = now_s + RETRY_SEARCH_S
        self.circuit.refresh()
        search = self.completion.backend.unfinished(self.circuit.namespaces)
        jobs = [job for job in search.jobs if job.uid not in ours]
        claims = {key: self._claims.get(key, now_s) for job in jobs if (key := _claim(job))}
        self._claims = claims
        for job in jobs:
            key = _claim(job)
            if key is None:
                text = "Another restarter left a restart of this job unfinished. This restarter completes it."
                self.decisions.publish(decisions.TAKEN_OVER, "unfinished", text, job=job)
                take_over(job)
            elif now_s - claims[key] >= self.claim_lasts_s:
                self._remove(job)
        if search.error is not None:
            event(log, logging.WARNING, "cannot search for unfinished restarts", reason=search.error)
            return False
        if search.unsearched:
            remedy = "restore the restarter's Role there, or resume its jobs manually"
            names = ", ".join(sorted(search.unsearched))
            event(log, logging.WARNING, "no access to a namespace of earlier restarts", namespaces=names, remedy=remedy)
        self.circuit.forget({*self.circuit.namespaces} - search.unsearched - {job.namespace for job in search.jobs})
        self.due_s, self.complete = now_s + SEARCH_S, True
        return True

    def _remove(self, job: Job) -> None:
        try:
            self.completion.close(job)
        except BackendError as error:  # the next search finds it again
            event(log, logging.WARNING, "cannot remove the restarter's claim from a job", job=job.name, reason=error)
        else:
            text = "Another restarter announced a restart of this job and never began it. The announcement was removed."
            self.decisions.publish(decisions.TAKEN_OVER, "unfinished", text, job=job)


def _claim(job: Job) -> tuple[str, str | None] | None:
    return (job.uid, job.record.by) if job.record.phase == CLAIMED else None
