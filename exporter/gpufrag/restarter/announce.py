"""What the worker says of an alert and of a restart: each thing once, in the list, as an Event, and in the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from . import decisions
from .alerts import Alert
from .clock import Clock
from .decisions import Decision, Recorder, about
from .finish import Result
from .kubernetes.cluster import Ref
from .kubernetes.owners import Resolved
from .ledger import Said
from .metrics import ACTIONS, DEDUPLICATED, LAST_SUCCESS, REFUSED, Metrics
from .reasons import Skip


@dataclass(frozen=True)
class Announcer:
    """For the worker's thread."""

    recorder: Recorder
    metrics: Metrics
    clock: Clock
    said: Said

    def refused(self, alert: Alert, skip: Skip, job: Resolved | None = None) -> None:
        """The same of the same job, a short while later, only counts as a duplicate."""
        label = skip.reason.label
        what = job.owner.uid if job else (alert.namespace, alert.pod)
        if self._again(what, label):
            return
        self.metrics.count(REFUSED, label)
        ref = job.owner.ref if job else None
        decision = about(self.clock.now(), decisions.REFUSED, label, f"Not restarted: {skip.text}.", alert, ref)
        self.recorder.tell(decision, ref, job.pod if job else None)

    def rehearsed(self, result: Result, alert: Alert, ref: Ref) -> None:
        if not self._again(ref.uid, result.label):
            self.ended(result, alert, ref)

    def ended(self, result: Result, alert: Alert, ref: Ref) -> None:
        now = self.clock.now()
        self.metrics.count(ACTIONS, str(ref.group_kind), result.label)
        if result.outcome == decisions.RESTARTED:
            self.metrics.set(LAST_SUCCESS, now)
        self.recorder.tell(about(now, result.outcome, result.label, result.text, alert, ref), ref)

    def taken_up(self, ref: Ref, text: str) -> None:
        self.recorder.tell(Decision(self.clock.now(), decisions.RESUMED, "left-behind", text, job=str(ref)), ref)

    def began(self, decision: Decision, job: Resolved) -> None:
        self.recorder.tell(decision, job.owner.ref, job.pod)

    def _again(self, what: object, label: str) -> bool:
        again = self.said.again((what, label), self.clock.steady())
        if again:
            self.metrics.count(DEDUPLICATED)
        return again
